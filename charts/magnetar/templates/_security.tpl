{{/* "true" with TLS; "" without. */}}
{{- define "magnetar.tls" -}}
{{- if .Values.tls.enabled -}}true{{- end -}}
{{- end -}}

{{/* "true" if brokers serve the ports without TLS. */}}
{{- define "magnetar.plainPorts" -}}
{{- if or (not .Values.tls.enabled) .Values.tls.broker.keepPlain -}}true{{- end -}}
{{- end -}}

{{/* "true" if the etcd of this chart has TLS. */}}
{{- define "magnetar.etcdTls" -}}
{{- if and .Values.tls.enabled .Values.tls.etcd.enabled .Values.components.etcd (not .Values.etcd.external.endpoints) -}}true{{- end -}}
{{- end -}}

{{- define "magnetar.tokens" -}}
{{- if and .Values.auth.authentication.enabled .Values.auth.authentication.jwt.enabled -}}true{{- end -}}
{{- end -}}

{{/* "true" if there are tokens: roles that are listed have theirs before brokers ask for them. */}}
{{- define "magnetar.issuesTokens" -}}
{{- if and .Values.auth.authentication.jwt.enabled (or .Values.auth.authentication.enabled .Values.auth.authentication.jwt.roles) -}}true{{- end -}}
{{- end -}}

{{/* Where certificates come from: own (the operator, or a Job of the chart), cert-manager, existing. */}}
{{- define "magnetar.issuer" -}}
{{- if .Values.certs.existingSecrets -}}existing
{{- else if or .Values.certs.internal_issuer.enabled .Values.certs.issuers.ca.name -}}cert-manager
{{- else -}}own
{{- end -}}
{{- end -}}

{{/*
The roles that write ledgers and those that read them, as settings of bookies. Other issuers, and
certificates that are brought along, may have other names: bookkeeper.configData has their roles.
*/}}
{{- define "magnetar.bookieRoles" -}}
{{- $own := or (eq (include "magnetar.issuer" .) "own") (and (eq (include "magnetar.issuer" .) "cert-manager") .Values.certs.internal_issuer.enabled) -}}
{{- $name := include "magnetar.name" . -}}
{{- $roles := dict -}}
{{- if and .Values.tls.enabled $own (not .Values.tls.bookie.keepPlain) -}}
{{- $_ := set $roles "bookie_member_roles" (printf "%s-broker,%s-bookie,%s-recovery" $name $name $name) -}}
{{- $_ := set $roles "bookie_reader_roles" (printf "%s-jobs" $name) -}}
{{- end -}}
{{- toYaml $roles -}}
{{- end -}}

{{/* "true" if a Job of the chart issues Secrets: the operator does so for its own clusters. */}}
{{- define "magnetar.issuesSecrets" -}}
{{- $certificates := and .Values.tls.enabled (eq (include "magnetar.issuer" .) "own") -}}
{{- $tokens := and (include "magnetar.issuesTokens" .) .Values.auth.authentication.jwt.generateSecrets.enabled -}}
{{- if and (include "magnetar.plain" .) (or $certificates $tokens) -}}true{{- end -}}
{{- end -}}

{{/* The Secret with a component's certificate. Takes root, component. */}}
{{- define "magnetar.tlsSecret" -}}
{{ include "magnetar.name" .root }}-tls-{{ .component }}
{{- end -}}

{{- define "magnetar.tokenKeySecret" -}}
{{ include "magnetar.name" . }}-token-{{ ternary "symmetric" "asymmetric" .Values.auth.authentication.jwt.usingSecretKey }}-key
{{- end -}}

{{/* The roles of super users, without those that are left empty. */}}
{{- define "magnetar.superUsers" -}}
{{- $users := .Values.auth.superUsers -}}
{{- $roles := list -}}
{{- range $role := list $users.broker $users.operator $users.client $users.manager -}}
{{- if $role -}}{{- $roles = append $roles $role -}}{{- end -}}
{{- end -}}
{{- join "," ($roles | uniq) -}}
{{- end -}}

{{/* The components that have a certificate, as a list. */}}
{{- define "magnetar.tlsComponents" -}}
{{- $parts := list "broker" "bookie" "broker-client" "bookie-client" -}}
{{- if .Values.components.autorecovery -}}{{- $parts = concat $parts (list "recovery" "recovery-client") -}}{{- end -}}
{{- if include "magnetar.etcdTls" . -}}{{- $parts = append $parts "etcd" -}}{{- end -}}
{{- toYaml (append $parts "jobs") -}}
{{- end -}}

{{/*
spec.tls and spec.auth of a MagnetarCluster. The operator issues Secrets from them; for a cluster
without it, a Job of the chart reads the same.
*/}}
{{- define "magnetar.securitySpec" -}}
{{- $tls := .Values.tls -}}
{{- $auth := .Values.auth -}}
{{- $jwt := $auth.authentication.jwt -}}
{{- if $tls.enabled }}
tls:
  enabled: true
  keepPlain: {{ $tls.broker.keepPlain }}
  issuer: {{ eq (include "magnetar.issuer" .) "own" | ternary "Operator" "Secrets" }}
  common:
    duration: {{ $tls.common.duration }}
    renewBefore: {{ $tls.common.renewBefore }}
    keyAlgorithm: {{ $tls.common.keyAlgorithm }}
    keySize: {{ $tls.common.keySize }}
  authority:
    duration: {{ $tls.authority.duration }}
    renewBefore: {{ $tls.authority.renewBefore }}
    settle: {{ $tls.authority.settle }}
  broker:
    dnsNames:
      {{- toYaml $tls.broker.dnsNames | nindent 6 }}
    ipAddresses:
      {{- toYaml $tls.broker.ipAddresses | nindent 6 }}
  bookie:
    plain: {{ $tls.bookie.keepPlain }}
  {{- if not .Values.etcd.external.endpoints }}
  etcd:
    enabled: {{ $tls.etcd.enabled }}
    plain: {{ $tls.etcd.plain }}
    peers: {{ $tls.etcd.peers }}
  {{- end }}
{{- end }}
{{- if include "magnetar.issuesTokens" . }}
auth:
  authentication:
    enabled: {{ $auth.authentication.enabled }}
    jwt:
      usingSecretKey: {{ $jwt.usingSecretKey }}
      generateSecrets: {{ $jwt.generateSecrets.enabled }}
      duration: {{ $jwt.duration }}
      renewBefore: {{ $jwt.renewBefore }}
      roles:
        {{- toYaml $jwt.roles | nindent 8 }}
    {{- if $auth.authentication.openid.enabled }}
    openid:
      {{- range $key, $value := omit $auth.authentication.openid "enabled" }}
      {{ $key }}: {{ toString $value | quote }}
      {{- end }}
    {{- end }}
  authorization:
    enabled: {{ $auth.authorization.enabled }}
  superUsers:
    broker: {{ $auth.superUsers.broker }}
    operator: {{ $auth.superUsers.operator }}
    client: {{ $auth.superUsers.client }}
    {{- with $auth.superUsers.manager }}
    manager: {{ . }}
    {{- end }}
  {{- with $auth.resourceNamespaces }}
  resourceNamespaces:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A component's settings for TLS, authentication and authorization. Takes root, component. */}}
{{- define "magnetar.securitySettings" -}}
{{- $values := .root.Values -}}
{{- $settings := dict -}}
{{- if $values.tls.enabled -}}
{{- $files := dict "tlsCertificateFilePath" "/etc/magnetar/tls/tls.crt" "tlsKeyFilePath" "/etc/magnetar/tls/tls.key" "tlsTrustCertsFilePath" "/etc/magnetar/tls/ca.crt" "tlsRequireTrustedClientCertOnConnect" (eq .component "bookie" | toString) -}}
{{- $ledgers := dict "bookkeeperTLSClientAuthentication" "true" "bookkeeperTLSCertificateFilePath" "/etc/magnetar/tls-client/tls.crt" "bookkeeperTLSKeyFilePath" "/etc/magnetar/tls-client/tls.key" "bookkeeperTLSTrustCertsFilePath" "/etc/magnetar/tls/ca.crt" -}}
{{- $settings = merge $settings $files -}}
{{- if $values.tls.bookie.clients -}}
{{- $settings = merge $settings $ledgers -}}
{{- end -}}
{{- if has .component (list "bookie" "recovery") -}}
{{- $_ := set $settings "httpServerTlsEnable" "true" -}}
{{- end -}}
{{- if eq .component "bookie" -}}
{{- $_ := set $settings "bookie_tls" (ternary "optional" "required" $values.tls.bookie.keepPlain) -}}
{{- $settings = merge $settings (fromYaml (include "magnetar.bookieRoles" .root)) -}}
{{- end -}}
{{- if eq .component "broker" -}}
{{- $broker := dict "brokerServicePortTls" ($values.broker.ports.pulsarssl | toString) "webServicePortTls" ($values.broker.ports.https | toString) "brokerClientTlsEnabled" "true" "brokerClientTrustCertsFilePath" "/etc/magnetar/tls/ca.crt" "brokerClientCertificateFilePath" "/etc/magnetar/tls-client/tls.crt" "brokerClientKeyFilePath" "/etc/magnetar/tls-client/tls.key" -}}
{{- $settings = merge $settings $broker -}}
{{- end -}}
{{- end -}}
{{- if and (eq .component "broker") $values.auth.authentication.enabled -}}
{{- $authentication := $values.auth.authentication -}}
{{- $jwt := $authentication.jwt -}}
{{- $providers := list -}}
{{- if $jwt.enabled -}}
{{- $providers = append $providers "org.apache.pulsar.broker.authentication.AuthenticationProviderToken" -}}
{{- $_ := set $settings "brokerClientAuthenticationPlugin" "org.apache.pulsar.client.impl.auth.AuthenticationToken" -}}
{{- $_ := set $settings "brokerClientAuthenticationParameters" "file:///etc/magnetar/token/token" -}}
{{- if $jwt.usingSecretKey -}}
{{- $_ := set $settings "tokenSecretKey" "file:///etc/magnetar/token-key/secret.key" -}}
{{- else -}}
{{- $_ := set $settings "tokenPublicKey" "file:///etc/magnetar/token-key/public.key" -}}
{{- end -}}
{{- if $jwt.generateSecrets.enabled -}}
{{- $_ := set $settings "MAGNETAR_TOKEN_KEY_SET" "file:///etc/magnetar/token-key/jwks.json" -}}
{{- end -}}
{{- end -}}
{{- if $authentication.openid.enabled -}}
{{- $providers = append $providers "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID" -}}
{{- range $key, $value := omit $authentication.openid "enabled" -}}
{{- $_ := set $settings $key (toString $value) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $settings "authenticationEnabled" "true" -}}
{{- $_ := set $settings "authenticationProviders" (join "," $providers) -}}
{{- if $values.auth.authorization.enabled -}}
{{- $_ := set $settings "authorizationEnabled" "true" -}}
{{- $_ := set $settings "superUserRoles" (include "magnetar.superUsers" .root) -}}
{{- $_ := set $settings "MAGNETAR_OBSERVER_ROLES" "jobs" -}}
{{- end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* configData with the settings of security, as environment. Takes root, component, values. */}}
{{- define "magnetar.settings" -}}
{{- $security := fromYaml (include "magnetar.securitySettings" .) -}}
{{- if and (eq .component "broker") .root.Values.auth.authentication.enabled -}}
{{- /* Unlike the others, this one may be changed: it opens /metrics and nothing else. */}}
{{- $_ := set $security "authenticateMetricsEndpoint" "true" -}}
{{- end -}}
{{- include "magnetar.configData" (merge (deepCopy (.values.configData | default dict)) $security) -}}
{{- end -}}

{{/* Mounts of a component's secrets: files, which processes read again when they change. */}}
{{- define "magnetar.secretMounts" -}}
{{- $parts := fromYamlArray (include "magnetar.tlsComponents" .root) }}
{{- if and .root.Values.tls.enabled (has .component $parts) }}
- name: tls
  mountPath: /etc/magnetar/tls
  readOnly: true
{{- end }}
{{- if and .root.Values.tls.enabled (has (printf "%s-client" .component) $parts) }}
- name: tls-client
  mountPath: /etc/magnetar/tls-client
  readOnly: true
{{- end }}
{{- if and (eq .component "broker") (include "magnetar.tokens" .root) }}
- name: token-key
  mountPath: /etc/magnetar/token-key
  readOnly: true
- name: token
  mountPath: /etc/magnetar/token
  readOnly: true
{{- end }}
{{- end -}}

{{- define "magnetar.secretVolumes" -}}
{{- $parts := fromYamlArray (include "magnetar.tlsComponents" .root) }}
{{- if and .root.Values.tls.enabled (has .component $parts) }}
- name: tls
  secret:
    secretName: {{ include "magnetar.tlsSecret" . }}
    defaultMode: 0440
{{- end }}
{{- if and .root.Values.tls.enabled (has (printf "%s-client" .component) $parts) }}
- name: tls-client
  secret:
    secretName: {{ include "magnetar.tlsSecret" . }}-client
    defaultMode: 0440
{{- end }}
{{- if and (eq .component "broker") (include "magnetar.tokens" .root) }}
{{- $jwt := .root.Values.auth.authentication.jwt }}
# The private key stays in the Secret: brokers verify tokens, and issue none.
- name: token-key
  secret:
    secretName: {{ include "magnetar.tokenKeySecret" .root }}
    defaultMode: 0440
    items:
      - key: {{ ternary "SECRETKEY" "PUBLICKEY" $jwt.usingSecretKey }}
        path: {{ ternary "secret.key" "public.key" $jwt.usingSecretKey }}
      {{- if $jwt.generateSecrets.enabled }}
      - key: JWKS
        path: jwks.json
      {{- end }}
- name: token
  secret:
    secretName: {{ include "magnetar.name" .root }}-token-{{ .root.Values.auth.superUsers.broker }}
    defaultMode: 0440
    items:
      - key: TOKEN
        path: token
{{- end }}
{{- end -}}

{{/* Files of tools: the certificate of jobs, and the token of the role `client`. Takes root. */}}
{{- define "magnetar.toolMounts" -}}
{{- if .Values.tls.enabled }}
- name: tls-client
  mountPath: /etc/magnetar/tls-client
  readOnly: true
{{- end }}
{{- if include "magnetar.tokens" . }}
- name: token
  mountPath: /etc/magnetar/token
  readOnly: true
{{- end }}
{{- end -}}

{{/* Environment of tools: TLS of bookies, and where Pulsar's tools find client.conf. Takes root. */}}
{{- define "magnetar.toolEnv" -}}
- name: PULSAR_CLIENT_CONF
  value: /etc/magnetar/client/client.conf
{{- if and .Values.tls.enabled .Values.tls.bookie.clients }}
- name: MAGNETAR_BOOKKEEPER_TLS
  value: "true"
- name: MAGNETAR_BOOKKEEPER_TLS_CERT_FILE
  value: /etc/magnetar/tls-client/tls.crt
- name: MAGNETAR_BOOKKEEPER_TLS_KEY_FILE
  value: /etc/magnetar/tls-client/tls.key
- name: MAGNETAR_BOOKKEEPER_TLS_TRUST_FILE
  value: /etc/magnetar/tls-client/ca.crt
{{- end }}
{{- end -}}

{{/* client.conf of Pulsar's tools. Takes root. */}}
{{- define "magnetar.clientConf" -}}
webServiceUrl={{ include "magnetar.adminUrl" . }}
brokerServiceUrl={{ include "magnetar.serviceUrl" . }}
{{- if .Values.tls.enabled }}
useTls=true
tlsAllowInsecureConnection=false
tlsEnableHostnameVerification=true
tlsTrustCertsFilePath=/etc/magnetar/tls-client/ca.crt
{{- end }}
{{- if include "magnetar.tokens" . }}
authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
authParams=file:///etc/magnetar/token/token
{{- end }}
{{- end -}}

{{- define "magnetar.toolVolumes" -}}
{{- if .Values.tls.enabled }}
- name: tls-client
  secret:
    secretName: {{ include "magnetar.tlsSecret" (dict "root" . "component" "jobs") }}
    defaultMode: 0440
{{- end }}
{{- if include "magnetar.tokens" . }}
- name: token
  secret:
    secretName: {{ include "magnetar.name" . }}-token-{{ .Values.auth.superUsers.client }}
    defaultMode: 0440
    items:
      - key: TOKEN
        path: token
{{- end }}
{{- end -}}

{{/* The names of all Secrets that are issued for the cluster, as a list. */}}
{{- define "magnetar.issuedSecrets" -}}
{{- $names := list -}}
{{- $name := include "magnetar.name" . -}}
{{- if .Values.tls.enabled -}}
{{- $names = append $names (printf "%s-ca-tls" $name) -}}
{{- range $part := fromYamlArray (include "magnetar.tlsComponents" .) -}}
{{- $names = append $names (printf "%s-tls-%s" $name $part) -}}
{{- end -}}
{{- end -}}
{{- if include "magnetar.issuesTokens" . -}}
{{- $auth := .Values.auth -}}
{{- $names = append $names (include "magnetar.tokenKeySecret" .) -}}
{{- range $role := concat (list $auth.superUsers.broker $auth.superUsers.operator $auth.superUsers.client "metrics" "jobs") $auth.authentication.jwt.roles | uniq -}}
{{- $names = append $names (printf "%s-token-%s" $name $role) -}}
{{- end -}}
{{- end -}}
{{- toYaml $names -}}
{{- end -}}

{{/* Rights on Secrets by name. No rule can name an object that does not exist yet: create has none. */}}
{{- define "magnetar.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames:
    {{- toYaml . | nindent 4 }}
  verbs: [get, update]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- end -}}
