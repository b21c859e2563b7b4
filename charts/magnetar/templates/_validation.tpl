{{/*
Checks that the schema cannot express: values of Pulsar's chart that this chart does not have, with
their replacement, and values that exclude each other. One error lists all problems.
*/}}
{{- define "magnetar.refusals" -}}
zookeeper: "metadata is kept in etcd; remove this and use etcd.replicaCount (1 or 3) or etcd.external.endpoints"
oxia: "metadata is kept in etcd; remove this and use etcd.replicaCount (1 or 3) or etcd.external.endpoints"
proxy: "a later version has a proxy; remove this: clients connect to the brokers' Service (broker.service.type)"
functions: "there are no functions; remove this and run such code as an ordinary client, in a Deployment of your own"
function_worker: "there are no functions; remove this and run such code as an ordinary client, in a Deployment of your own"
pulsar_manager: "it is not part of this chart; remove this and install it separately, with the brokers' http port as its service URL"
dekaf: "it is not part of this chart; remove this and install it separately, with the brokers' http port as its service URL"
{{- end -}}

{{- define "magnetar.refusedBlocks" -}}
standalone: "remove this and install with -f examples/one-node.yaml, or run `magnetar standalone` without Kubernetes"
pulsar_metadata: "nothing has to be initialized; remove this (for your own etcd, set etcd.external.endpoints)"
namespaceCreate: "remove this and use `helm install --create-namespace`"
namespace: "remove this and use `helm install --namespace NAME`"
kube-prometheus-stack: "install it separately, and remove this; broker.podMonitor and dashboards.enabled work with it"
victoria-metrics-k8s-stack: "install it separately, and remove this; broker.podMonitor and dashboards.enabled work with it"
{{- end -}}

{{/* Settings that the chart sets itself, and where to set them. */}}
{{- define "magnetar.reservedKeys" -}}
metadataStoreUrl: etcd.replicaCount or etcd.external
metadataServiceUri: etcd.replicaCount or etcd.external
metadata_url: etcd.replicaCount or etcd.external
metadata_root: metadataPrefix
clusterName: fullnameOverride
cluster_name: fullnameOverride
cluster_owner: nothing; it is the release's namespace and name
brokerServicePort: broker.ports.pulsar
webServicePort: broker.ports.http
bookiePort: bookkeeper.ports.bookie
httpServerPort: the component's ports.http
port: the component's ports
http_port: the component's ports.http
bindAddress: nothing; pods listen on all of their addresses
host: nothing; pods listen on all of their addresses
advertisedAddress: nothing; each pod advertises its own address
advertised_host: nothing; each pod advertises its own address
bookieId: nothing; a bookie has the name of its pod
bookie_id: nothing; a bookie has the name of its pod
data_dir: nothing; it is the volume of bookkeeper.volumes
ledgerDirectories: nothing; it is the volume of bookkeeper.volumes
journalDirectory: nothing; it is the volume of bookkeeper.volumes
journalDirectories: nothing; it is the volume of bookkeeper.volumes
indexDirectories: nothing; it is the volume of bookkeeper.volumes
autorecovery: components.autorecovery
autoRecoveryDaemonEnabled: components.autorecovery
brokerShutdownTimeoutMs: the component's gracePeriod
shutdown_timeout_ms: the component's gracePeriod
{{- end -}}

{{- define "magnetar.validate" -}}
{{- $errors := list -}}
{{- $values := .Values -}}
{{- range $name, $text := fromYaml (include "magnetar.refusals" .) -}}
{{- if index $values.components $name -}}{{- $errors = append $errors (printf "components.%s: %s" $name $text) -}}{{- end -}}
{{- if hasKey $values $name -}}{{- $errors = append $errors (printf "%s: %s" $name $text) -}}{{- end -}}
{{- end -}}
{{- range $name, $text := fromYaml (include "magnetar.refusedBlocks" .) -}}
{{- $block := index $values $name -}}
{{- if kindIs "map" $block -}}{{- $block = dig "enabled" true $block -}}{{- end -}}
{{- if $block -}}{{- $errors = append $errors (printf "%s: %s" $name $text) -}}{{- end -}}
{{- end -}}
{{- $errors = concat $errors (include "magnetar.validateSettings" . | fromYamlArray) -}}
{{- $errors = concat $errors (include "magnetar.validateSecurity" . | fromYamlArray) -}}
{{- $errors = concat $errors (include "magnetar.validateTogether" . | fromYamlArray) -}}
{{- $errors = concat $errors (include "magnetar.validateOperator" . | fromYamlArray) -}}
{{- $errors = concat $errors (include "magnetar.validateChange" . | fromYamlArray) -}}
{{- if $errors -}}
{{- fail (printf "\n\nThese values are not possible:\n- %s\n" (join "\n- " $errors)) -}}
{{- end -}}
{{- end -}}

{{/* configData must have no variables of a JVM, and no settings that the chart sets itself. */}}
{{- define "magnetar.validateSettings" -}}
{{- $errors := list -}}
{{- $reserved := fromYaml (include "magnetar.reservedKeys" .) -}}
{{- range $part := list "broker" "bookkeeper" "autorecovery" -}}
{{- range $key, $value := (index $.Values $part).configData -}}
{{- $bare := $key | trimPrefix "PULSAR_PREFIX_" -}}
{{- if hasPrefix "MAGNETAR_" $bare -}}{{- $bare = $bare | trimPrefix "MAGNETAR_" | lower -}}{{- end -}}
{{- if regexMatch "^(PULSAR|BOOKIE)_(MEM|GC|EXTRA_OPTS|LOG_CONF|GC_LOG)$" $key -}}
{{- $errors = append $errors (printf "%s.configData.%s: there is no JVM; remove it (memory: %s.resources)" $part $key $part) -}}
{{- else if hasKey $reserved $bare -}}
{{- $errors = append $errors (printf "%s.configData.%s: the chart sets it; use %s" $part $key (index $reserved $bare)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $errors -}}
{{- end -}}

{{- define "magnetar.validateTogether" -}}
{{- $errors := list -}}
{{- $values := .Values -}}
{{- $data := $values.broker.configData -}}
{{- $ensemble := int ($data.managedLedgerDefaultEnsembleSize | default $data.ensemble_size | default 2) -}}
{{- $write := int ($data.managedLedgerDefaultWriteQuorum | default $data.write_quorum | default 2) -}}
{{- $ack := int ($data.managedLedgerDefaultAckQuorum | default $data.ack_quorum | default 2) -}}
{{- if and $values.components.bookkeeper (gt $ensemble (int $values.bookkeeper.replicaCount)) -}}
{{- $errors = append $errors (printf "broker.configData.managedLedgerDefaultEnsembleSize: a ledger on %d bookies cannot be created with bookkeeper.replicaCount %d; lower the first or raise the second" $ensemble (int $values.bookkeeper.replicaCount)) -}}
{{- end -}}
{{- if or (gt $write $ensemble) (gt $ack $write) -}}
{{- $errors = append $errors (printf "broker.configData: ack quorum %d, write quorum %d, ensemble size %d: each must be at most the next (managedLedgerDefaultAckQuorum, …WriteQuorum, …EnsembleSize)" $ack $write $ensemble) -}}
{{- end -}}
{{- if and (not $values.components.etcd) (not $values.etcd.external.endpoints) (or $values.components.broker $values.components.bookkeeper) -}}
{{- $errors = append $errors "components.etcd: there is no metadata store; set it to true, or name yours in etcd.external.endpoints" -}}
{{- end -}}
{{- $external := $values.etcd.external -}}
{{- if and (or $external.caKey $external.certKey $external.keyKey $external.passwordKey) (not $external.secretName) -}}
{{- $errors = append $errors "etcd.external.secretName: it must name the Secret that has the files of caKey, certKey, keyKey and passwordKey" -}}
{{- end -}}
{{- if and $external.username (not $external.passwordKey) -}}
{{- $errors = append $errors "etcd.external.passwordKey: a username needs a password; name its key in the Secret" -}}
{{- end -}}
{{- if lt (int $values.broker.gracePeriod) (add 5 $values.broker.preStopSeconds | int) -}}
{{- $errors = append $errors (printf "broker.gracePeriod: it must be at least preStopSeconds + 5, here %d: topics are handed over in the remaining time" (add 5 $values.broker.preStopSeconds)) -}}
{{- end -}}
{{- $scaling := $values.broker.autoscaling -}}
{{- if $scaling.enabled -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- $errors = append $errors "broker.autoscaling.minReplicas: it must not be more than maxReplicas" -}}
{{- end -}}
{{- if and (not $scaling.metrics) (not (dig "requests" "cpu" "" $values.broker.resources)) -}}
{{- $errors = append $errors "broker.resources.requests.cpu: autoscaling by CPU is in percent of it; set it, or broker.autoscaling.metrics" -}}
{{- end -}}
{{- if and $scaling.backlog.enabled (include "magnetar.plain" .) -}}
{{- $errors = append $errors "broker.autoscaling.backlog.enabled: the operator serves that metric for its own clusters; set operator.enabled and operator.cluster, or backlog.enabled to false" -}}
{{- end -}}
{{- end -}}
{{- toYaml $errors -}}
{{- end -}}

{{/* TLS, authentication and authorization: nothing half closed is installed. */}}
{{- define "magnetar.validateSecurity" -}}
{{- $errors := list -}}
{{- $values := .Values -}}
{{- $tls := $values.tls -}}
{{- $auth := $values.auth -}}
{{- if $tls.proxy.enabled -}}
{{- $errors = append $errors "tls.proxy.enabled: there is no proxy; set it to false, clients connect to the Service of the brokers" -}}
{{- end -}}
{{- if $auth.superUsers.proxy -}}
{{- $errors = append $errors "auth.superUsers.proxy: there is no proxy; leave it empty" -}}
{{- end -}}
{{- $issuers := list $values.certs.existingSecrets $values.certs.internal_issuer.enabled (not (empty $values.certs.issuers.ca.name)) -}}
{{- if gt (len (without $issuers false)) 1 -}}
{{- $errors = append $errors "certs: choose one of existingSecrets, internal_issuer.enabled and issuers.ca.name" -}}
{{- end -}}
{{- if and (has true $issuers) (not $tls.enabled) -}}
{{- $errors = append $errors "certs: certificates are for tls.enabled; set it to true, or leave certs as it is" -}}
{{- end -}}
{{- if and $tls.enabled (ne (eq $tls.common.keyAlgorithm "ECDSA") (lt (int $tls.common.keySize) 2048)) -}}
{{- $errors = append $errors "tls.common.keySize: it must be 256 or 384 with ECDSA, and 2048, 3072 or 4096 with RSA" -}}
{{- end -}}
{{- if and $auth.authorization.enabled (not $auth.authentication.enabled) -}}
{{- $errors = append $errors "auth.authorization.enabled: it needs auth.authentication.enabled" -}}
{{- end -}}
{{- if and $auth.authentication.enabled (not $auth.authentication.jwt.enabled) -}}
{{- $errors = append $errors "auth.authentication.jwt.enabled: brokers and the operator prove their own roles by tokens; leave it true (auth.authentication.openid may be used beside it)" -}}
{{- end -}}
{{- if and $auth.authentication.enabled $auth.authentication.openid.enabled (not (and $auth.authentication.openid.openIDAllowedTokenIssuers $auth.authentication.openid.openIDAllowedAudiences)) -}}
{{- $errors = append $errors "auth.authentication.openid: set openIDAllowedTokenIssuers and openIDAllowedAudiences" -}}
{{- end -}}
{{- range $part, $component := dict "broker" "broker" "bookkeeper" "bookie" "autorecovery" "recovery" -}}
{{- $reserved := keys (fromYaml (include "magnetar.securitySettings" (dict "root" $ "component" $component))) -}}
{{- range $key, $value := (index $values $part).configData -}}
{{- if has ($key | trimPrefix "PULSAR_PREFIX_") $reserved -}}
{{- $errors = append $errors (printf "%s.configData.%s: the chart sets it; use tls and auth" $part $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $errors -}}
{{- end -}}

{{/* Values that a MagnetarCluster does not support. */}}
{{- define "magnetar.validateOperator" -}}
{{- $errors := list -}}
{{- $values := .Values -}}
{{- if not (include "magnetar.plain" .) -}}
{{- range $part, $ports := dict "broker" (dict "http" 8080 "pulsar" 6650 "https" 8443 "pulsarssl" 6651) "bookkeeper" (dict "http" 8000 "bookie" 3181) "autorecovery" (dict "http" 8000) "etcd" (dict "client" 2379 "peer" 2380 "health" 2381) -}}
{{- range $port, $number := $ports -}}
{{- if ne (int $number) (int (index $values $part "ports" $port)) -}}
{{- $errors = append $errors (printf "%s.ports.%s: clusters of the operator have fixed ports; leave it at %d" $part $port (int $number)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $role := list "bookie" "broker" "autorecovery" -}}
{{- $image := index $values.images $role -}}
{{- if or $image.repository $image.tag -}}
{{- $errors = append $errors (printf "images.%s: clusters of the operator have one image; use defaultImageRepository and defaultImageTag" $role) -}}
{{- end -}}
{{- end -}}
{{- if not (and $values.components.broker $values.components.bookkeeper) -}}
{{- $errors = append $errors "components: clusters of the operator have brokers and bookies; leave components.broker and components.bookkeeper true, or set operator.cluster to false" -}}
{{- end -}}
{{- if not (and $values.persistence $values.volumes.persistence $values.bookkeeper.volumes.persistence $values.etcd.volumes.persistence) -}}
{{- $errors = append $errors "persistence: clusters of the operator have volumes; set it to true, or operator.cluster to false" -}}
{{- end -}}
{{- if and $values.metadataPrefix (not $values.etcd.external.endpoints) -}}
{{- $errors = append $errors "metadataPrefix: it is for an external etcd that several clusters share; clusters of the operator have their own etcd: leave it empty or set etcd.external.endpoints" -}}
{{- end -}}
{{- if or $values.etcd.external.secretName $values.etcd.external.username -}}
{{- $errors = append $errors "etcd.external.secretName: clusters of the operator reach an external etcd without TLS and password only; set operator.cluster to false" -}}
{{- end -}}
{{- if not $values.tls.bookie.clients -}}
{{- $errors = append $errors "tls.bookie.clients: the operator restarts bookies before brokers by itself; leave it true" -}}
{{- end -}}
{{- if and $values.offload (not $values.offload.driver) -}}
{{- $errors = append $errors "offload.driver: name one of aws-s3, S3, google-cloud-storage, azureblob, filesystem; or leave offload empty" -}}
{{- end -}}
{{- if $values.broker.autoscaling.metrics -}}
{{- $errors = append $errors "broker.autoscaling.metrics: the operator creates the autoscaler; use cpuUtilization and backlog, or set operator.cluster to false" -}}
{{- end -}}
{{- else if $values.offload -}}
{{- $errors = append $errors "offload: it is for clusters of the operator; set operator.enabled and operator.cluster, or use broker.configData (managedLedgerOffloadDriver and the like) and broker.extraEnvs" -}}
{{- end -}}
{{- toYaml $errors -}}
{{- end -}}

{{/* Values that cannot change while a cluster runs; `helm template` knows no cluster. */}}
{{- define "magnetar.validateChange" -}}
{{- $errors := list -}}
{{- $name := include "magnetar.name" . -}}
{{- $values := .Values -}}
{{- if include "magnetar.plain" . -}}
{{- $bookies := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-bookie" $name) -}}
{{- if and $bookies $values.components.bookkeeper -}}
{{- range $i := untilStep (int $values.bookkeeper.replicaCount) (int $bookies.spec.replicas) 1 -}}
{{- $bookie := printf "%s-bookie-%d" $name $i -}}
{{- if not (has $bookie $values.bookkeeper.decommissioned) -}}
{{- $errors = append $errors (printf "bookkeeper.replicaCount: %s has data that would be lost; first run `magnetar bookie decommission --bookie-id %s` in a pod of the cluster, then list it in bookkeeper.decommissioned (the operator does this automatically)" $bookie $bookie) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $etcd := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-etcd" $name) -}}
{{- if and $etcd $values.components.etcd (not $values.etcd.external.endpoints) (ne (int $etcd.spec.replicas) (int $values.etcd.replicaCount)) -}}
{{- $errors = append $errors (printf "etcd.replicaCount: the members of a running etcd cannot be changed here; leave it at %d" (int $etcd.spec.replicas)) -}}
{{- end -}}
{{- if and $etcd (include "magnetar.etcdTls" .) -}}
{{- $args := join " " (first $etcd.spec.template.spec.containers).args -}}
{{- if ne $values.tls.etcd.peers (contains "--listen-peer-urls=https:" $args) -}}
{{- $errors = append $errors (printf "tls.etcd.peers: the members' addresses are recorded in the running etcd; set it to %t" (not $values.tls.etcd.peers)) -}}
{{- end -}}
{{- end -}}
{{- else if and .Release.IsUpgrade (not (.Capabilities.APIVersions.Has "magnetar.io/v1alpha1/MagnetarCluster")) -}}
{{- $errors = append $errors "operator.enabled: its CustomResourceDefinitions do not exist; run `kubectl apply --server-side -f` the folder charts/crds/crds of this chart first" -}}
{{- end -}}
{{- toYaml $errors -}}
{{- end -}}
