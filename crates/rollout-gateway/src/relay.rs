//! Carries a stream from an upstream to the agent, and keeps a copy for the record.

use bytes::{Bytes, BytesMut};
use rollout_model::client::SseDecoder;
use serde_json::Value;

use crate::{
    copy::ResponseCopy,
    dialect::Dialect,
    split::EventSplitter,
    translate::{StreamTranslator, TranslationError},
    usage,
    usage::tokens::Extras,
};

/// Turns pieces of the upstream's stream into pieces of the agent's.
#[derive(Debug)]
pub(crate) enum Relay {
    /// The bytes are passed on as they come.
    Same,
    /// What the agent did not ask for is removed, event by event.
    Stripped { dialect: Dialect, extras: Extras, splitter: EventSplitter },
    /// The events become those of another dialect.
    Translated { decoder: SseDecoder, translator: Box<StreamTranslator> },
}

impl Relay {
    pub(crate) fn new(dialect: Dialect, extras: Extras) -> Self {
        if extras.is_empty() {
            return Self::Same;
        }
        Self::Stripped { dialect, extras, splitter: EventSplitter::default() }
    }

    pub(crate) fn translated(translator: StreamTranslator) -> Self {
        Self::Translated { decoder: SseDecoder::default(), translator: Box::new(translator) }
    }

    /// Takes a piece of the upstream's stream.
    pub(crate) fn push(&mut self, piece: Bytes, copy: &mut ResponseCopy) -> Result<Bytes, TranslationError> {
        Ok(match self {
            Self::Same => {
                copy.feed(&piece);
                piece
            }
            Self::Translated { decoder, translator } => {
                copy.feed(&piece);
                let mut out = Vec::new();
                decoder.feed(&piece, |event| {
                    out.extend(translator.feed(event.data)?);
                    Ok::<_, TranslationError>(())
                })?;
                out.into()
            }
            Self::Stripped { dialect, extras, splitter } => {
                splitter.push(&piece);
                let mut out = BytesMut::new();
                while let Some(event) = splitter.next() {
                    copy.feed(&event);
                    if let Some(kept) = stripped(*dialect, *extras, event) {
                        out.extend_from_slice(&kept);
                    }
                }
                out.freeze()
            }
        })
    }

    /// Takes the end of the upstream's stream.
    pub(crate) fn finish(&mut self, copy: &mut ResponseCopy) -> Result<Bytes, TranslationError> {
        Ok(match self {
            Self::Same => Bytes::new(),
            Self::Translated { decoder, translator } => {
                let mut out = Vec::new();
                decoder.finish(|event| {
                    out.extend(translator.feed(event.data)?);
                    Ok::<_, TranslationError>(())
                })?;
                out.extend(translator.finish()?);
                out.into()
            }
            Self::Stripped { dialect, extras, splitter } => {
                let rest = splitter.rest();
                copy.feed(&rest);
                stripped(*dialect, *extras, rest).unwrap_or_default()
            }
        })
    }
}

/// An event without what the agent did not ask for; `None` if nothing is left.
fn stripped(dialect: Dialect, extras: Extras, event: Bytes) -> Option<Bytes> {
    let has = |word: &[u8]| event.windows(word.len()).any(|bytes| bytes == word);
    let may_have_usage = extras.usage_chunk && has(b"\"usage\"") && !has(b"\"usage\":null");
    let may_have_tokens =
        extras.has_tokens() && (has(b"ogprobs") || has(b"token_ids\"") || has(b"output_ids\""));
    if !may_have_usage && !may_have_tokens {
        return Some(event);
    }
    let (name, mut data) = parsed(&event)?;
    if may_have_usage && data["usage"].is_object() && data["choices"].as_array().is_some_and(Vec::is_empty) {
        return None;
    }
    if !may_have_tokens {
        return Some(event);
    }
    usage::tokens::remove(dialect, extras, &mut data);
    let name = if name.is_empty() { String::new() } else { format!("event: {name}\n") };
    Some(format!("{name}data: {data}\n\n").into())
}

/// The name and the data of a single event.
fn parsed(event: &[u8]) -> Option<(String, Value)> {
    let mut found = None;
    let mut decoder = SseDecoder::default();
    let mut on_event = |event: rollout_model::client::SseEvent<'_>| {
        let name = String::from_utf8_lossy(event.name).into_owned();
        found = serde_json::from_slice(event.data).ok().map(|data| (name, data));
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(()) = decoder.feed(event, &mut on_event);
    let Ok(()) = decoder.finish(&mut on_event);
    found
}
