{{- define "holdfast.name" -}}
{{- printf "%s-%s" .Release.Name .file | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
holdfast.file: {{ .file }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "holdfast.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default .Release.Name .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- /* The configuration file, with the address of the probes unless the file has one. */ -}}
{{- define "holdfast.config" -}}
{{- $config := .settings.config -}}
{{- if kindIs "string" $config -}}
{{- $config = fromYaml $config -}}
{{- /* fromYaml returns its error as a value. */ -}}
{{- if hasKey $config "Error" -}}{{- fail (printf "files.%s.config is not valid YAML: %s" .file $config.Error) -}}{{- end -}}
{{- end -}}
{{- if or (not (kindIs "map" $config)) (empty $config) -}}
{{- fail (printf "files.%s.config must be the configuration file, as text or as an object" .file) -}}
{{- end -}}
{{- $node := dict "metrics_port" .Values.metricsPort "metrics_address" "0.0.0.0" "log" "json" -}}
{{- toYaml (mergeOverwrite (dict "node" $node) (deepCopy $config)) -}}
{{- end -}}
