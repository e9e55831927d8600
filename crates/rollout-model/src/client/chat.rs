//! Chat completions: the dialect of OpenAI, as it and the many servers after it speak it.

mod request;
mod response;
mod stream;

pub(super) use request::{Request, messages_value, tools_value};
pub(super) use response::Completion;
pub(super) use stream::Assembly;
