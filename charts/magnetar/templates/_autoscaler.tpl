{{/* The brokers' autoscaler, if the operator does not create it. */}}
{{- define "magnetar.brokerAutoscaler" -}}
{{- $name := include "magnetar.name" . -}}
{{- $scaling := .Values.broker.autoscaling -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}-broker
  labels:
    {{- include "magnetar.labels" (dict "root" . "component" .Values.broker.component) | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ $name }}-broker
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    {{- if $scaling.metrics }}
    {{- toYaml $scaling.metrics | nindent 4 }}
    {{- else }}
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $scaling.cpuUtilization }}
    {{- end }}
  behavior:
    {{- if $scaling.behavior }}
    {{- toYaml $scaling.behavior | nindent 4 }}
    {{- else }}
    # Up at once; down one at a time: its bundles are taken over before the next one ends.
    scaleUp:
      stabilizationWindowSeconds: 0
      selectPolicy: Max
      policies:
        - type: Percent
          value: 100
          periodSeconds: 30
        - type: Pods
          value: 2
          periodSeconds: 30
    scaleDown:
      stabilizationWindowSeconds: 300
      selectPolicy: Max
      policies:
        - type: Pods
          value: 1
          periodSeconds: 60
    {{- end }}
{{- end -}}
