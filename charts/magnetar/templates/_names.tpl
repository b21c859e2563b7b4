{{/* The cluster's name, with which all objects' names begin. */}}
{{- define "magnetar.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* "true" if this chart creates the pods itself; else the operator does, or there is no cluster. */}}
{{- define "magnetar.plain" -}}
{{- if not (and .Values.operator.enabled .Values.operator.cluster) -}}true{{- end -}}
{{- end -}}

{{/* The selector of a component's pods. It can never change for a StatefulSet. */}}
{{- define "magnetar.selector" -}}
app: magnetar
cluster: {{ include "magnetar.name" .root }}
component: {{ .component }}
{{- end -}}

{{- define "magnetar.labels" -}}
{{ include "magnetar.selector" . }}
release: {{ .root.Release.Name }}
app.kubernetes.io/name: magnetar
app.kubernetes.io/instance: {{ include "magnetar.name" .root }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* Labels of pods: without the chart's version, which would restart them with each upgrade. */}}
{{- define "magnetar.podLabels" -}}
{{ include "magnetar.selector" . }}
release: {{ .root.Release.Name }}
app.kubernetes.io/name: magnetar
app.kubernetes.io/instance: {{ include "magnetar.name" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* REPOSITORY:TAG of a role; parts that it does not set come from the default image. */}}
{{- define "magnetar.image" -}}
{{- $image := index .root.Values.images .role -}}
{{- $tag := $image.tag | default .root.Values.defaultImageTag | default .root.Chart.AppVersion -}}
{{- printf "%s:%s" ($image.repository | default .root.Values.defaultImageRepository) $tag -}}
{{- end -}}

{{- define "magnetar.pullPolicy" -}}
{{- (index .root.Values.images .role).pullPolicy | default .root.Values.defaultPullPolicy -}}
{{- end -}}

{{/* The domain of names inside Kubernetes. */}}
{{- define "magnetar.domain" -}}
{{ .Release.Namespace }}.svc{{ with .Values.clusterDomain }}.{{ . }}{{ end }}
{{- end -}}

{{/* The domain in which the name of each pod is its address, with dashes. */}}
{{- define "magnetar.podDomain" -}}
{{ .Release.Namespace }}.pod{{ with .Values.clusterDomain }}.{{ . }}{{ end }}
{{- end -}}

{{/* The names of the brokers' ports, as a list. */}}
{{- define "magnetar.brokerPorts" -}}
{{- $ports := list -}}
{{- if include "magnetar.plainPorts" . -}}{{- $ports = concat $ports (list "http" "pulsar") -}}{{- end -}}
{{- if include "magnetar.tls" . -}}{{- $ports = concat $ports (list "https" "pulsarssl") -}}{{- end -}}
{{- toYaml $ports -}}
{{- end -}}

{{/* metadata_url: every member of etcd by its own name, so that any of them may be down. */}}
{{- define "magnetar.metadataUrl" -}}
{{- $root := . -}}
{{- $urls := list -}}
{{- if .Values.etcd.external.endpoints -}}
{{- range .Values.etcd.external.endpoints -}}
{{- $urls = append $urls . -}}
{{- end -}}
{{- else -}}
{{- range $i := until (int .Values.etcd.replicaCount) -}}
{{- $name := include "magnetar.name" $root -}}
{{- $urls = append $urls (printf "%s://%s-etcd-%d.%s-etcd.%s:%d" (ternary "https" "http" (eq (include "magnetar.etcdTls" $root) "true")) $name $i $name (include "magnetar.domain" $root) (int $root.Values.etcd.ports.client)) -}}
{{- end -}}
{{- end -}}
etcd:{{ join "," $urls }}
{{- end -}}

{{/* The address of the admin REST inside the Kubernetes cluster. */}}
{{- define "magnetar.adminUrl" -}}
{{- if include "magnetar.tls" . -}}
https://{{ include "magnetar.name" . }}-broker.{{ .Release.Namespace }}.svc:{{ .Values.broker.ports.https }}
{{- else -}}
http://{{ include "magnetar.name" . }}-broker.{{ .Release.Namespace }}.svc:{{ .Values.broker.ports.http }}
{{- end -}}
{{- end -}}

{{- define "magnetar.serviceUrl" -}}
{{- if include "magnetar.tls" . -}}
pulsar+ssl://{{ include "magnetar.name" . }}-broker.{{ .Release.Namespace }}.svc:{{ .Values.broker.ports.pulsarssl }}
{{- else -}}
pulsar://{{ include "magnetar.name" . }}-broker.{{ .Release.Namespace }}.svc:{{ .Values.broker.ports.pulsar }}
{{- end -}}
{{- end -}}
