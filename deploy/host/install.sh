
# Installs Outrider from a wheel of known digest: into the image's environment, or a new one. If
# the image lacks its expected environment, AWS's wheels are installed in the new one, too.
install_tools() {
    if ! command -v aws > /dev/null; then snap install aws-cli --classic; fi
    if [ -e "${image_venv:-/none}/bin/python" ]; then return; fi
    image_venv=''
    if [ -n "$neuron_wheels" ] || ! python3 -c 'import ensurepip' 2> /dev/null; then
        apt-get update -q
        # shellcheck disable=SC2086
        apt-get install -q -y python3-venv $neuron_libraries
    fi
}

install_outrider() {
    local venv=${image_venv:-/opt/outrider/plain_venv} local_wheel wheels=/opt/outrider/wheels.txt
    local_wheel=/opt/outrider/$(basename "$wheel")
    aws s3 cp --only-show-errors "$wheel" "$local_wheel"
    echo "$wheel_sha256  $local_wheel" | sha256sum --check --quiet
    if [ -n "$image_venv" ]; then neuron_wheels=''; else python3 -m venv "$venv"; fi
    echo "$neuron_wheels" > "$wheels"
    ln -sfn "$venv" /opt/outrider/venv
    install_beside "$venv/bin/python" "${local_wheel}[$extras]" --requirement "$wheels"
}

# The Hugging Face token, if a model needs one: stored in a variable, and deleted from AWS.
take_hub_token() {
    hub_token=''
    if [ -z "$hub_token_parameter" ]; then return; fi
    hub_token=$(aws ssm get-parameter --with-decryption --name "$hub_token_parameter" \
        --query Parameter.Value --output text)
    aws ssm delete-parameters --names "$hub_token_parameter" > /dev/null
}

# install_beside PYTHON WHEEL[EXTRAS] [PIP_FLAG ...]
# Installs Outrider together with the environment's own packages, pinned to their versions. So pip
# keeps them and their dependencies, or fails. AWS's packages are untested with transformers 5
# or protobuf 7. Dockerfile.neuron calls this from sh, docs/trainium.md from a terminal.
install_beside() (
    python=$1
    what=$2
    shift 2
    pins=$(mktemp)
    "$python" -m pip list --format=freeze \
        | { grep -iE '^(torch|transformers|neuron|libneuron|aws-neuron|nki|protobuf=+[7-9])' || true; } \
        > "$pins"
    if grep -qi '^torch[-_]neuronx' "$pins"; then
        grep -qi '^transformers=' "$pins" || echo 'transformers<5' >> "$pins"
        grep -qi '^protobuf=' "$pins" || echo 'protobuf<7' >> "$pins"
    fi
    "$python" -m pip install --quiet --disable-pip-version-check "$@" \
        --requirement "$pins" "$what"
)
