//! OpenAI's Chat Completions.

mod read;
mod response;
mod stream;
mod write;

pub(super) use read::read_request;
pub(super) use response::{read_answer, write_answer};
pub(super) use stream::{EventReader, EventWriter};
pub(super) use write::write_request;
