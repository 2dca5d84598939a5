
# Everything above is generated for one job: its settings, and how Outrider is installed.
set -euo pipefail
umask 022
step='start' digest='' reporter='' python=/opt/outrider/venv/bin/python
work=/var/lib/outrider-job
export DEBIAN_FRONTEND=noninteractive AWS_DEFAULT_REGION="$region" HOME="$work"
export XDG_CACHE_HOME="$work/cache" HF_HOME="$work/huggingface"

# Scheduled first, so that the job ends even if its caller is gone.
shutdown -P "+$lifetime_minutes" 'the end of the lifetime of this job'
install -d -m 0755 /opt/outrider "$work"
touch "$work/log.txt"  # tee makes it later, and a report may come before
exec > >(tee -a "$work/log.txt") 2>&1

report() {
    printf '{"state": "%s", "step": "%s", "digest": "%s"}\n' "$1" "$step" "$digest" \
        > "$work/status.json"
    aws s3 cp --only-show-errors "$work/log.txt" "$reports/log.txt"
    aws s3 cp --only-show-errors "$work/status.json" "$reports/status.json"
}

begin() {
    step=$1
    echo "outrider job: $step"
    report running
}

ended() {
    local status=$?
    set +e
    rm -f "$work/running"
    if [ -n "$reporter" ]; then wait "$reporter"; fi
    if [ -d "$work/results" ]; then
        aws s3 cp --only-show-errors --recursive "--exclude=*/artefact/*" \
            "--include=*/artefact/manifest.json" "--include=*/artefact/graphs/*.json" \
            "--include=*/artefact/graphs/*.log.txt" "$work/results" "$reports/results"
    fi
    if [ "$status" -eq 0 ]; then report built; else
        echo "outrider job: FAILED at: $step (exit code $status)"
        report failed
    fi
    shutdown -P now
}
trap ended EXIT

# The log is uploaded to the bucket while it grows.
report_meanwhile() {
    while [ -e "$work/running" ]; do
        aws s3 cp --only-show-errors "$work/log.txt" "$reports/log.txt"
        sleep 5
    done
}

install_tools
begin 'Outrider'
install_outrider
take_hub_token
begin 'commands'
touch "$work/running"
report_meanwhile > /dev/null 2>&1 &
reporter=$!
cd "$work"
HF_TOKEN=$hub_token run_commands
if [ -d "$work/artefact" ]; then
    digest=$("$python" -c 'import sys; from pathlib import Path
from inference.files.artifact import read_manifest
print(read_manifest(Path(sys.argv[1])).digest())' "$work/artefact")
fi
begin 'done'
