
# install_beside PYTHON WHEEL[EXTRA,...] [PIP_FLAG ...]
# pip is asked for the packages that the environment brings, in their very versions, beside Outrider.
# It then keeps them and what they need, or fails.
install_beside() {
    python=$1
    wheel_file=$2
    shift 2
    "$python" -m pip list --format=freeze \
        | { grep -iE '^(torch|transformers|neuron|libneuron|aws-neuron|nki)' || true; } \
        > /opt/outrider/pins.txt
    if grep -qi '^torch[-_]neuronx' /opt/outrider/pins.txt \
        && ! grep -qi '^transformers=' /opt/outrider/pins.txt; then
        echo 'transformers<5' >> /opt/outrider/pins.txt
    fi
    "$python" -m pip install --quiet --disable-pip-version-check "$@" \
        --requirement /opt/outrider/pins.txt "$wheel_file"
}
