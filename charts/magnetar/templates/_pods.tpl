{{/* What the pods of all components share. Takes root, component, values, role. */}}
{{- define "magnetar.pod" -}}
{{- $root := .root -}}
serviceAccountName: {{ include "magnetar.name" $root }}-{{ .component }}
automountServiceAccountToken: {{ .token | default false }}
# Variables such as MAGNETAR_BROKER_PORT, made for a Service of that name, are not settings.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .values.gracePeriod }}
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.images.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- if and $root.Values.affinity.anti_affinity .values.affinity.anti_affinity }}
affinity:
  podAntiAffinity:
    {{- $term := dict "topologyKey" .values.affinity.anti_affinity_topology_key "labelSelector" (dict "matchLabels" (fromYaml (include "magnetar.selector" .))) }}
    {{- if eq .values.affinity.type "requiredDuringSchedulingIgnoredDuringExecution" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - {{- toYaml $term | nindent 8 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          {{- toYaml $term | nindent 10 }}
    {{- end }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml (merge (dict) . (dict "labelSelector" (dict "matchLabels" (fromYaml (include "magnetar.selector" $))))) | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "magnetar.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Probes over HTTP. Takes values (with probe), port, live, ready. */}}
{{- define "magnetar.probes" -}}
{{- $top := . -}}
{{- range $kind, $path := dict "liveness" .live "readiness" .ready "startup" .live }}
{{- $probe := index $top.values.probe $kind }}
{{- if $probe.enabled }}
{{ $kind }}Probe:
  httpGet:
    path: {{ $path }}
    port: {{ $top.port }}
    {{- if $top.tls }}
    scheme: HTTPS
    {{- end }}
  failureThreshold: {{ $probe.failureThreshold }}
  initialDelaySeconds: {{ $probe.initialDelaySeconds }}
  periodSeconds: {{ $probe.periodSeconds }}
  timeoutSeconds: {{ $probe.timeoutSeconds }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Environment of all of Magnetar's processes. Takes root. */}}
{{- define "magnetar.env" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: MAGNETAR_CLUSTER_NAME
  value: {{ include "magnetar.name" .root }}
- name: MAGNETAR_METADATA_URL
  value: {{ include "magnetar.metadataUrl" .root | quote }}
{{- with .root.Values.metadataPrefix }}
- name: MAGNETAR_METADATA_ROOT
  value: {{ . | quote }}
{{- end }}
{{- if include "magnetar.etcdTls" .root }}
- name: MAGNETAR_METADATA_TLS_CA_FILE
  value: /etc/magnetar/tls-client/ca.crt
- name: MAGNETAR_METADATA_TLS_CERT_FILE
  value: /etc/magnetar/tls-client/tls.crt
- name: MAGNETAR_METADATA_TLS_KEY_FILE
  value: /etc/magnetar/tls-client/tls.key
{{- end }}
{{- $external := .root.Values.etcd.external }}
{{- if $external.endpoints }}
- name: MAGNETAR_CLUSTER_OWNER
  value: {{ printf "%s/%s" .root.Release.Namespace (include "magnetar.name" .root) }}
{{- end }}
{{- range $setting, $key := dict "MAGNETAR_METADATA_TLS_CA_FILE" $external.caKey "MAGNETAR_METADATA_TLS_CERT_FILE" $external.certKey "MAGNETAR_METADATA_TLS_KEY_FILE" $external.keyKey "MAGNETAR_METADATA_PASSWORD_FILE" $external.passwordKey }}
{{- if and $external.endpoints $external.secretName $key }}
- name: {{ $setting }}
  value: /etc/magnetar/etcd/{{ $key }}
{{- end }}
{{- end }}
{{- if and $external.endpoints $external.username }}
- name: MAGNETAR_METADATA_USERNAME
  value: {{ $external.username | quote }}
{{- end }}
- name: MAGNETAR_LOG_FORMAT
  value: json
{{- end -}}

{{/* Mounts and volumes of all of Magnetar's processes. */}}
{{- define "magnetar.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if and .Values.etcd.external.endpoints .Values.etcd.external.secretName }}
- name: etcd-client
  mountPath: /etc/magnetar/etcd
  readOnly: true
{{- end }}
{{- end -}}

{{- define "magnetar.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- include "magnetar.volumesOfEtcd" . }}
{{- end -}}

{{/* The volumes of brokers, whose compactions sort their keys in /tmp. */}}
{{- define "magnetar.brokerVolumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
{{- include "magnetar.volumesOfEtcd" . }}
{{- end -}}

{{- define "magnetar.volumesOfEtcd" -}}
{{- if and .Values.etcd.external.endpoints .Values.etcd.external.secretName }}
- name: etcd-client
  secret:
    secretName: {{ .Values.etcd.external.secretName }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* configData as environment: Pulsar's keys behind PULSAR_PREFIX_, ours behind MAGNETAR_. */}}
{{- define "magnetar.configData" -}}
{{- $data := dict -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $text := toString $value -}}
{{- if kindIs "float64" $value -}}{{- $text = toJson $value -}}{{- end -}}
{{- if or (hasPrefix "PULSAR_PREFIX_" $key) (hasPrefix "MAGNETAR_" $key) -}}
{{- $_ := set $data $key $text -}}
{{- else if regexMatch "^[a-z0-9_]+$" $key -}}
{{- $_ := set $data (printf "MAGNETAR_%s" (upper $key)) $text -}}
{{- else -}}
{{- $_ := set $data (printf "PULSAR_PREFIX_%s" $key) $text -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $data -}}
{{- end -}}

{{/* A component's ConfigMap. Takes root, component, values. */}}
{{- define "magnetar.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "magnetar.name" .root }}-{{ .component }}
  labels:
    {{- include "magnetar.labels" . | nindent 4 }}
data:
  {{- include "magnetar.settings" . | nindent 2 }}
{{- end -}}

{{- define "magnetar.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "magnetar.name" .root }}-{{ .component }}
  labels:
    {{- include "magnetar.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .values.pdb.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "magnetar.selector" . | nindent 6 }}
{{- end -}}

{{- define "magnetar.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "magnetar.name" .root }}-{{ .component }}
  labels:
    {{- include "magnetar.labels" . | nindent 4 }}
  {{- with .values.service_account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}

{{/* The claim of a StatefulSet's one volume. Takes root, volume, size, part. */}}
{{- define "magnetar.volumeClaim" -}}
- metadata:
    name: data
    labels:
      {{- include "magnetar.selector" .part | nindent 6 }}
  spec:
    accessModes: [ReadWriteOnce]
    resources:
      requests:
        storage: {{ .size }}
    {{- if or .root.Values.volumes.local_storage .volume.local_storage }}
    storageClassName: {{ .volume.storageClassName | default "local-storage" }}
    {{- else if .volume.storageClassName }}
    storageClassName: {{ .volume.storageClassName }}
    {{- end }}
{{- end -}}
