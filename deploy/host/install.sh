
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
    install_beside "$venv/bin/python" "${local_wheel}[$extras]"
}

# The hub's token for a model that needs one: kept in a variable, and deleted where it came from.
take_hub_token() {
    hub_token=''
    if [ -z "$hub_token_parameter" ]; then return; fi
    hub_token=$(aws ssm get-parameter --with-decryption --name "$hub_token_parameter" \
        --query Parameter.Value --output text)
    aws ssm delete-parameters --names "$hub_token_parameter" > /dev/null
}

# install_beside PYTHON WHEEL[EXTRAS] [PIP_FLAG ...]
# pip is asked for the packages that the environment brings, in their very versions, beside Outrider.
# It then keeps them and what they need, or fails. Dockerfile.neuron calls this from sh.
install_beside() {
    python=$1
    what=$2
    shift 2
    "$python" -m pip list --format=freeze \
        | { grep -iE '^(torch|transformers|neuron|libneuron|aws-neuron|nki)' || true; } \
        > /opt/outrider/pins.txt
    if grep -qi '^torch[-_]neuronx' /opt/outrider/pins.txt \
        && ! grep -qi '^transformers=' /opt/outrider/pins.txt; then
        echo 'transformers<5' >> /opt/outrider/pins.txt
    fi
    "$python" -m pip install --quiet --disable-pip-version-check "$@" \
        --requirement /opt/outrider/pins.txt "$what"
}
