//! Chat completions: the API of OpenAI, which many other servers offer too.

mod request;
mod response;
mod stream;

pub(super) use request::{Request, messages_value, tools_value};
pub(super) use response::Completion;
pub(super) use stream::Assembly;
