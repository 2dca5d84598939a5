
# Installs Outrider from a wheel of known digest: into the image's environment, or a new one. Where
# the image lacks the environment that it is known for, a new one gets AWS's wheels as well.
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
# It then keeps them and what they need, or fails. AWS's packages were never seen with transformers 5
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
