//! What the first process of a container and whoever started it say to each other.
#![forbid(unsafe_code)]
