//! Detects builds that failed because of the network.

/// Messages of programs when the network fails.
const NETWORK_TROUBLE: [&str; 6] = [
    "Temporary failure resolving",
    "Temporary failure in name resolution",
    "Could not resolve host",
    "Connection timed out",
    "Connection reset by peer",
    "Network is unreachable",
];

/// Whether the output of a failed command shows a network failure.
pub(super) fn is_network_trouble(output: &str) -> bool {
    NETWORK_TROUBLE.iter().any(|words| output.contains(words))
}
