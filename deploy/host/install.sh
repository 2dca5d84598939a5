
# Installs Outrider from a wheel of known digest: into the image's environment, or a new one.
install_tools() {
    if ! command -v aws > /dev/null; then snap install aws-cli --classic; fi
    if [ -z "$image_venv" ] && ! python3 -c 'import ensurepip' 2> /dev/null; then
        apt-get update -q
        apt-get install -q -y python3-venv
    fi
}

# pip is asked for the packages that the image brings, in their very versions, beside Outrider. It
# then keeps them and what they need, or fails.
install_outrider() {
    local venv=${image_venv:-/opt/outrider/plain_venv} local_wheel pins=/opt/outrider/pins.txt
    local_wheel=/opt/outrider/$(basename "$wheel")
    aws s3 cp --only-show-errors "$wheel" "$local_wheel"
    echo "$wheel_sha256  $local_wheel" | sha256sum --check --quiet
    if [ -z "$image_venv" ]; then python3 -m venv "$venv"; fi
    ln -sfn "$venv" /opt/outrider/venv
    "$venv/bin/python" -m pip list --format=freeze \
        | { grep -iE '^(torch|transformers|neuron|libneuron|aws-neuron|nki)' || true; } > "$pins"
    if grep -qi '^torch-neuronx' "$pins" && ! grep -qi '^transformers=' "$pins"; then
        echo 'transformers<5' >> "$pins"
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        ${extra_index:+--extra-index-url "$extra_index"} \
        --requirement "$pins" "${local_wheel}[$extras]"
}
