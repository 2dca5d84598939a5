
# Installs Outrider from a wheel of known digest: into the image's environment, or a new one.
install_tools() {
    if ! command -v aws > /dev/null; then snap install aws-cli --classic; fi
    if [ -z "$image_venv" ] && ! python3 -c 'import ensurepip' 2> /dev/null; then
        apt-get update -q
        apt-get install -q -y python3-venv
    fi
}

install_outrider() {
    local venv=${image_venv:-/opt/outrider/plain_venv} local_wheel
    local_wheel=/opt/outrider/$(basename "$wheel")
    aws s3 cp --only-show-errors "$wheel" "$local_wheel"
    echo "$wheel_sha256  $local_wheel" | sha256sum --check --quiet
    if [ -z "$image_venv" ]; then python3 -m venv "$venv"; fi
    ln -sfn "$venv" /opt/outrider/venv
    install_beside "$venv/bin/python" "${local_wheel}[$extras]" \
        ${extra_index:+--extra-index-url "$extra_index"}
}
