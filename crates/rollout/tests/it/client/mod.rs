//! The client of models against a scripted server that keeps to the protocol.

mod failures;
mod limits;
mod requests;
mod responses;
mod streams;
mod support;
