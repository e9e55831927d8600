//! Messages: the API of Anthropic.

mod request;
mod response;
mod stream;

pub(super) use request::Request;
pub(super) use response::Reply;
pub(super) use stream::Assembly;
