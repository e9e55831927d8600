//! Telling a build that the network failed from one that fails every time.

/// What programs print when the network fails them.
const NETWORK_TROUBLE: [&str; 6] = [
    "Temporary failure resolving",
    "Temporary failure in name resolution",
    "Could not resolve host",
    "Connection timed out",
    "Connection reset by peer",
    "Network is unreachable",
];

/// Whether the output of a failed command says that the network failed it.
pub(super) fn is_network_trouble(output: &str) -> bool {
    NETWORK_TROUBLE.iter().any(|words| output.contains(words))
}
