
# Everything above is generated for one host: its settings, and functions that print files.
set -euo pipefail
umask 022
step='start'
export DEBIAN_FRONTEND=noninteractive AWS_DEFAULT_REGION="$region"

begin() {
    step=$1
    echo "outrider setup: $step"
}

ended() {
    local status=$?
    if [ "$status" -eq 0 ]; then
        echo 'outrider setup: done, the target is ready'
    else
        echo "outrider setup: FAILED at: $step (exit code $status)"
        shutdown -P "+$idle_minutes" 'Outrider was not set up'
    fi
}
trap ended EXIT

install_units() {
    local unit
    for unit in outrider-{target,idle,lifetime}.service outrider-{idle,lifetime}.timer; do
        "$unit" > "/etc/systemd/system/$unit"
    done
    mkdir -p /etc/systemd/system/outrider-lifetime.timer.d
    printf '[Timer]\nOnBootSec=\nOnBootSec=%smin\n' "$lifetime_minutes" \
        > /etc/systemd/system/outrider-lifetime.timer.d/lifetime.conf
    systemctl daemon-reload
    systemctl enable --now outrider-lifetime.timer
}

make_user() {
    id outrider > /dev/null 2>&1 || useradd --system --user-group --no-create-home \
        --home-dir /var/lib/outrider --shell /usr/sbin/nologin outrider
    install -d -m 0755 /opt/outrider
    install -d -m 0750 -o root -g outrider /etc/outrider
    install -d -m 0750 -o outrider -g outrider /var/lib/outrider /var/cache/outrider
}

# `outrider deploy up` uploads the secrets after the host has started, or when repeated within an
# hour.
fetch_secret() {
    local tries=0
    install -m 0640 -o root -g outrider /dev/null "$2"
    until aws ssm get-parameter --with-decryption --name "$1" --query Parameter.Value \
        --output text > "$2"; do
        tries=$((tries + 1))
        [ "$tries" -lt 720 ]
        sleep 5
    done
}

as_outrider() {
    runuser -u outrider -- env HOME=/var/lib/outrider XDG_CACHE_HOME=/var/cache/outrider \
        HF_HOME=/var/lib/outrider/huggingface PATH="/opt/outrider/venv/bin:$PATH" "$@"
}

fetch_model() {
    cd /var/lib/outrider
    if [ -n "$artifact_store" ]; then
        as_outrider python -m compile --pull "$artifact_store" --digest "$digest" \
            --out /var/lib/outrider/artifact
    elif [ "${model#s3://}" != "$model" ]; then
        as_outrider aws s3 cp --only-show-errors --recursive "$model" /var/lib/outrider/model
        echo "$digest  -" > /opt/outrider/model.sha256
        cd /var/lib/outrider/model
        find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum \
            | sha256sum --check --quiet /opt/outrider/model.sha256
    elif [ -n "$model" ]; then
        HF_TOKEN=$hub_token as_outrider outrider pull "$model"
    fi
}

begin 'timers'
install_units
begin 'user and directories'
make_user
begin 'tools'
install_tools
begin 'Outrider'
install_outrider
begin 'secrets'
fetch_secret "$certificate_parameter" /etc/outrider/cert.pem
fetch_secret "$key_parameter" /etc/outrider/key.pem
fetch_secret "$keys_file_parameter" /etc/outrider/keys.json
aws ssm delete-parameters --names "$certificate_parameter" "$key_parameter" "$keys_file_parameter" \
    > /dev/null
take_hub_token
target_options > /etc/outrider/target.yaml
begin 'model'
fetch_model
begin 'target'
systemctl enable --now outrider-target.service
printf 'IDLE_MINUTES=%s\nMETRICS_PORT=%s\n' "$idle_minutes" "$metrics_port" \
    > /etc/outrider/host.env
systemctl enable --now outrider-idle.timer
