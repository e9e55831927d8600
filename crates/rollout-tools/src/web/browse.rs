//! Reads pages for a model.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    charset,
    fetch::{Fetched, Fetcher},
    html,
};
use crate::{
    arguments,
    resource::{ErrorCode, Params, ToolError},
};

/// The most pages of one call.
const MAX_URLS: usize = 10;

/// The number of pages that one call fetches concurrently.
const AT_A_TIME: usize = 4;

/// The time limit for converting a page. An ordinary page takes a fraction of a second.
const MAX_CONVERSION: Duration = Duration::from_secs(10);

/// The number of characters of an address shown above a page.
const SHOWN_URL_CHARS: usize = 300;

/// The fewest characters shown of each page of a call.
const MIN_CHARS: usize = 200;

/// A page as text.
struct Text {
    url: Url,
    title: Option<String>,
    content_type: String,
    text: String,
    is_cut: bool,
}

/// The part of a page that one call shows.
struct Part {
    shown: String,
    start: usize,
    end: usize,
    total: usize,
}

/// Reads the pages that the parameters name.
pub(super) async fn browse(fetcher: &Fetcher, max_chars: usize, params: &Params) -> Result<Value, ToolError> {
    let urls = arguments::texts(params, &["urls", "url"])?;
    if urls.len() > MAX_URLS {
        let message = format!("there are {} addresses; 1 to {MAX_URLS} are allowed", urls.len());
        return Err(ToolError::new(ErrorCode::InvalidInput, message));
    }
    let start = usize::try_from(arguments::whole(params, "start")?.unwrap_or(0)).unwrap_or(0);
    let max_chars = (max_chars / urls.len()).max(MIN_CHARS);
    let read: Vec<_> = stream::iter(urls.clone())
        .map(|url| async move { read(fetcher, &url, start, max_chars).await })
        .buffered(AT_A_TIME)
        .collect()
        .await;
    if urls.len() == 1 {
        let one = read.into_iter().next().unwrap_or_else(|| Err(arguments::missing("urls")));
        return one.map(|(text, page)| json!({"result": text, "pages": [page], "failed": []}));
    }
    let (mut texts, mut pages, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (url, outcome) in urls.iter().zip(read) {
        match outcome {
            Ok((text, page)) => {
                texts.push(text);
                pages.push(page);
            }
            Err(error) => {
                texts.push(format!("[not read: {error}]"));
                failed.push(json!({"url": url, "code": error.code as u16, "error": error.message}));
            }
        }
    }
    let text = texts.join("\n\n---\n\n");
    if pages.is_empty() {
        let mut error = ToolError::new(ErrorCode::AllFailed, format!("none of the pages was read.\n{text}"));
        error.data = json!({"failed": failed});
        return Err(error);
    }
    Ok(json!({"result": text, "pages": pages, "failed": failed}))
}

async fn read(
    fetcher: &Fetcher,
    address: &str,
    start: usize,
    max_chars: usize,
) -> Result<(String, Value), ToolError> {
    let fetched = fetcher.fetch(address).await?;
    let page = convert(fetched).await?;
    let url: String = page.url.as_str().chars().take(SHOWN_URL_CHARS).collect();
    let Part { shown, start, end, total } = part(&page.text, start, max_chars).ok_or_else(|| {
        let total = page.text.chars().count();
        ToolError::new(
            ErrorCode::InvalidInput,
            format!("{url} has {total} characters; start is beyond its end"),
        )
    })?;
    let mut text = page.title.as_ref().map_or_else(String::new, |title| format!("{title}\n"));
    text.push_str(&url);
    if start > 0 || end < total || page.is_cut {
        let total = if page.is_cut { format!("more than {total}") } else { total.to_string() };
        text.push_str(&format!("\n[characters {start} to {end} of {total}"));
        if end < total.parse().unwrap_or(usize::MAX) && end > start {
            text.push_str(&format!("; continue with start={end}"));
        }
        text.push(']');
    }
    text.push_str("\n\n");
    text.push_str(if shown.is_empty() { "[the page has no text]" } else { &shown });
    let facts = json!({
        "url": page.url.as_str(), "title": page.title, "content_type": page.content_type,
        "start": start, "end": end, "total": total, "truncated": page.is_cut,
    });
    Ok((text, facts))
}

/// Converts a page to text on a blocking thread.
async fn convert(page: Fetched<'_>) -> Result<Text, ToolError> {
    let kind = Kind::of(&page)?;
    let Fetched { url, content_type, body, is_cut, .. } = page;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let _stops_when_dropped = stop.drop_guard();
    let work = tokio::task::spawn_blocking(move || {
        let text = charset::decode(&body, content_type.as_deref(), is_cut);
        let content_type = content_type.unwrap_or_default();
        match kind {
            Kind::Text => Text { url, title: None, content_type, text, is_cut },
            Kind::Html => {
                let until = Instant::now() + MAX_CONVERSION;
                let page = html::to_markdown(&text, Some(&url), || {
                    !stopped.is_cancelled() && Instant::now() < until
                });
                Text {
                    url,
                    title: page.title,
                    content_type,
                    text: page.markdown,
                    is_cut: is_cut || page.is_cut,
                }
            }
        }
    });
    work.await
        .map_err(|error| ToolError::new(ErrorCode::Unexpected, format!("cannot convert the page: {error}")))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Html,
    Text,
}

impl Kind {
    fn of(page: &Fetched<'_>) -> Result<Self, ToolError> {
        let kind = page.content_type.as_deref().unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let refused = |what: &str| {
            Err(ToolError::new(
                ErrorCode::Refused,
                format!("{} is {what}, which cannot be shown as text", page.url),
            ))
        };
        match kind.as_str() {
            "text/html" | "application/xhtml+xml" => Ok(Self::Html),
            "application/json"
            | "application/xml"
            | "application/javascript"
            | "application/x-ndjson"
            | "application/yaml"
            | "application/toml"
            | "application/sql" => Ok(Self::Text),
            "application/pdf" => refused("a PDF"),
            _ if kind.starts_with("text/") || kind.ends_with("+json") || kind.ends_with("+xml") => {
                Ok(Self::Text)
            }
            "" | "application/octet-stream" => {
                Self::by_content(&page.body).map_or_else(|| refused("binary data"), Ok)
            }
            _ => refused(&kind),
        }
    }

    /// Detects the type of a page that does not declare it.
    fn by_content(body: &[u8]) -> Option<Self> {
        let start = &body[..body.len().min(1024)];
        if start.contains(&0) {
            return None;
        }
        let is_html = |tag: &[u8]| start.windows(tag.len()).any(|window| window.eq_ignore_ascii_case(tag));
        if is_html(b"<html") || is_html(b"<!doctype html") || is_html(b"<body") {
            return Some(Self::Html);
        }
        let is_text = std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
        is_text.then_some(Self::Text)
    }
}

/// At most `max_chars` characters of a text from `start`; `None` if the text ends before.
fn part(text: &str, start: usize, max_chars: usize) -> Option<Part> {
    let total = text.chars().count();
    if start > total || start == total && total > 0 {
        return None;
    }
    let rest = text.char_indices().nth(start).map_or("", |(at, _)| &text[at..]);
    let mut shown = rest.char_indices().nth(max_chars).map_or(rest, |(at, _)| &rest[..at]);
    if shown.len() < rest.len() {
        // A line or word that would be cut is left for the next part, unless it is most of this one.
        let whole = |at: &usize| *at > shown.len() / 4 * 3;
        let end = shown.rfind('\n').filter(whole).or_else(|| shown.rfind(' ').filter(whole));
        shown = end.map_or(shown, |end| &shown[..=end]);
    }
    Some(Part { start, end: start + shown.chars().count(), total, shown: shown.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_parts_of_a_page_are_the_page(text in "([a-z巴é]{0,12}[ \n]?){0,40}", max_chars in 1..50usize) {
            let mut seen = String::new();
            let mut start = 0;
            while let Some(part) = part(&text, start, max_chars) {
                prop_assert_eq!(part.start, start);
                prop_assert!(part.shown.chars().count() <= max_chars);
                seen.push_str(&part.shown);
                if part.end == part.total {
                    break;
                }
                prop_assert!(part.end > start);
                start = part.end;
            }
            prop_assert_eq!(seen, text);
        }
    }

    #[test]
    fn a_start_beyond_the_end_is_not_an_empty_page() {
        assert!(part("abc", 3, 10).is_none());
        assert_eq!(part("", 0, 10).unwrap().total, 0);
    }
}
