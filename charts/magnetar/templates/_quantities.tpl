{{/* A Kubernetes quantity of bytes as MiB, rounded up: 10Gi -> 10240. */}}
{{- define "magnetar.mib" -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?" (toString .) -}}
{{- $unit := trimPrefix $number (toString .) -}}
{{- $factors := dict "" (divf 1 1048576) "Ki" (divf 1 1024) "Mi" 1.0 "Gi" 1024.0 "Ti" 1048576.0 "k" (divf 1000 1048576) "M" (divf 1000000 1048576) "G" (divf 1000000000 1048576) "T" (divf 1000000000000 1048576) -}}
{{- ceil (mulf (float64 $number) (index $factors $unit)) | int64 -}}
{{- end -}}

{{/* Size of a bookie's one volume: common.size, else the sum of Pulsar's two volumes. */}}
{{- define "magnetar.bookieVolume" -}}
{{- $volumes := .Values.bookkeeper.volumes -}}
{{- if $volumes.common.size -}}
{{- $volumes.common.size -}}
{{- else -}}
{{- $mib := add (include "magnetar.mib" $volumes.journal.size) (include "magnetar.mib" $volumes.ledgers.size) -}}
{{- if eq (mod $mib 1024) 0 -}}{{ div $mib 1024 }}Gi{{- else -}}{{ $mib }}Mi{{- end -}}
{{- end -}}
{{- end -}}
