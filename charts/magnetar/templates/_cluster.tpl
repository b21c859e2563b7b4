{{/* The fields of a MagnetarCluster for a component's pods. Takes root, values. */}}
{{- define "magnetar.clusterPods" -}}
resources:
  {{- toYaml .values.resources | nindent 2 }}
{{- $anti := and .root.Values.affinity.anti_affinity .values.affinity.anti_affinity }}
antiAffinity: {{ not $anti | ternary "Disabled" (hasPrefix "required" .values.affinity.type | ternary "Required" "Preferred") }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
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
{{- with .values.annotations }}
podAnnotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.extraEnvs }}
extraEnv:
  {{- toYaml . | nindent 2 }}
{{- end }}
gracePeriod: {{ .values.gracePeriod }}s
pdb:
  enabled: {{ .values.pdb.usePolicy }}
  maxUnavailable: {{ .values.pdb.maxUnavailable }}
{{- end -}}

{{/* configData as texts, without the quorums, which have fields of their own. */}}
{{- define "magnetar.clusterConfig" -}}
{{- $quorums := list "managedLedgerDefaultEnsembleSize" "managedLedgerDefaultWriteQuorum" "managedLedgerDefaultAckQuorum" "ensemble_size" "write_quorum" "ack_quorum" -}}
{{- $config := dict -}}
{{- range $key, $value := . -}}
{{- if not (or (has $key $quorums) (kindIs "invalid" $value)) -}}
{{- $_ := set $config (trimPrefix "PULSAR_PREFIX_" $key) (kindIs "float64" $value | ternary (toJson $value) (toString $value)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "magnetar.clusterStorage" -}}
size: {{ .size }}
{{- with .volume.storageClassName | default (ternary "local-storage" "" (or .root.Values.volumes.local_storage .volume.local_storage)) }}
storageClassName: {{ . }}
{{- end }}
{{- end -}}
