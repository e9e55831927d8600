//! Searches the web through a configured service.

use std::{error::Error as _, time::Duration};

use futures_util::{StreamExt as _, stream};
use reqwest::{Client, RequestBuilder, Response, StatusCode, header, redirect};
use rollout_core::parse_retry_after;
use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

use super::{
    config::{Backend, SearchConfig, WebConfigError},
    html,
};
use crate::{
    arguments,
    resource::{ErrorCode, Params, ToolError},
};

/// The most queries of one call.
const MAX_QUERIES: usize = 10;

/// The number of concurrent queries of one call.
const AT_A_TIME: usize = 4;

const MAX_QUERY_CHARS: usize = 1000;

/// The default number of results of one query.
const DEFAULT_RESULTS: i64 = 10;
const MAX_RESULTS: i64 = 50;

/// The most results that Brave returns at a time.
const BRAVE_MAX_RESULTS: usize = 20;

/// The largest accepted answer.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// The longest `Retry-After` that is respected.
const MAX_WAIT: Duration = Duration::from_secs(15);

/// The most characters of a result that are shown.
const SHOWN_TITLE_CHARS: usize = 200;
const SHOWN_SNIPPET_CHARS: usize = 500;

/// A search service.
#[derive(Debug)]
pub(super) struct Search {
    config: SearchConfig,
    url: Url,
    client: Client,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Hit {
    query: String,
    title: String,
    url: String,
    snippet: String,
}

impl Search {
    pub(super) fn new(config: SearchConfig) -> Result<Self, WebConfigError> {
        let written = match (&config.url, config.backend) {
            (Some(url), _) => url.as_str(),
            (None, Backend::Brave) => "https://api.search.brave.com/res/v1/web/search",
            (None, Backend::Serper) => "https://google.serper.dev/search",
            (None, backend) => return Err(WebConfigError::NoSearchUrl(backend)),
        };
        let mut url = Url::parse(written)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or(WebConfigError::Url("search.url"))?;
        if config.backend == Backend::Searxng && !url.path().ends_with("/search") {
            let path = format!("{}/search", url.path().trim_end_matches('/'));
            url.set_path(&path);
        }
        if config.timeout_seconds == 0 {
            return Err(WebConfigError::Zero("search.timeout_seconds"));
        }
        // A redirect could send the key to another server.
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .timeout(Duration::from_secs(config.timeout_seconds))
            .build()
            .map_err(WebConfigError::Client)?;
        Ok(Self { config, url, client })
    }

    /// Answers the queries of the parameters.
    pub(super) async fn search(&self, params: &Params) -> Result<Value, ToolError> {
        let queries = arguments::texts(params, &["query", "queries"])?;
        let queries = queries.iter().map(|query| query.trim().to_owned()).filter(|query| !query.is_empty());
        let queries: Vec<String> = queries.collect();
        if queries.is_empty() || queries.len() > MAX_QUERIES {
            let message = format!("there are {} queries; 1 to {MAX_QUERIES} are allowed", queries.len());
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        if queries.iter().any(|query| query.chars().count() > MAX_QUERY_CHARS) {
            let message = format!("a query has at most {MAX_QUERY_CHARS} characters");
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        let wanted =
            arguments::whole(params, "max_results")?.unwrap_or(DEFAULT_RESULTS).clamp(1, MAX_RESULTS);
        let wanted = usize::try_from(wanted).unwrap_or(1);
        self.check_key()?;
        let answers: Vec<_> = stream::iter(queries.clone())
            .map(|query| async move { self.ask(&query, wanted).await })
            .buffered(AT_A_TIME)
            .collect()
            .await;
        report(&queries, answers)
    }

    fn check_key(&self) -> Result<(), ToolError> {
        let place = match self.config.backend {
            Backend::Brave => "https://api-dashboard.search.brave.com",
            Backend::Serper => "https://serper.dev",
            Backend::Searxng | Backend::Custom => return Ok(()),
        };
        if self.config.api_key.as_ref().is_some_and(|key| !key.reveal().is_empty()) {
            return Ok(());
        }
        let message = format!(
            "the web search has no API key; get one at {place} and set resources.web.search.api_key in the tool server's configuration"
        );
        Err(ToolError::new(ErrorCode::KeyMissing, message))
    }

    /// Sends one query, with retries if the service is busy.
    async fn ask(&self, query: &str, wanted: usize) -> Result<Vec<Hit>, ToolError> {
        let mut retries = 0;
        loop {
            let (error, wait) = match self.request(query, wanted).send().await {
                Ok(response) if response.status().is_success() => {
                    return self.read(query, wanted, response).await;
                }
                Ok(response) => {
                    let wait = retry_after(&response);
                    let passing = is_passing(response.status());
                    let error = self.refusal(response).await;
                    if !passing {
                        return Err(error);
                    }
                    (error, wait)
                }
                Err(error) => (self.explain(error), None),
            };
            let wait = wait.unwrap_or_else(|| Duration::from_millis(500) * 2_u32.saturating_pow(retries));
            if retries == self.config.max_retries || wait > MAX_WAIT {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
            retries += 1;
        }
    }

    fn request(&self, query: &str, wanted: usize) -> RequestBuilder {
        let key = self.config.api_key.as_ref().map(|key| key.reveal()).unwrap_or_default();
        let mut url = self.url.clone();
        let count = wanted.min(BRAVE_MAX_RESULTS).to_string();
        let in_url: &[(&str, &str)] = match self.config.backend {
            Backend::Searxng => &[("q", query), ("format", "json")],
            Backend::Brave => &[("q", query), ("count", &count)],
            Backend::Serper | Backend::Custom => &[],
        };
        let mut body = match self.config.backend {
            Backend::Serper => json!({"q": query, "num": wanted}),
            Backend::Custom => json!({"query": query, "max_results": wanted}),
            Backend::Searxng | Backend::Brave => Value::Null,
        };
        if let Value::Object(body) = &mut body {
            body.extend(self.config.params.clone());
            let request = self.client.post(url).json(&body);
            return match self.config.backend {
                Backend::Serper => request.header("X-API-KEY", key),
                _ if key.is_empty() => request,
                _ => request.bearer_auth(key),
            };
        }
        {
            let mut pairs = url.query_pairs_mut();
            pairs.extend_pairs(in_url);
            for (name, value) in &self.config.params {
                pairs.append_pair(name, &value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            }
        }
        let request = self.client.get(url).header(header::ACCEPT, "application/json");
        match self.config.backend {
            Backend::Brave => request.header("X-Subscription-Token", key),
            _ if key.is_empty() => request,
            _ => request.bearer_auth(key),
        }
    }

    async fn read(&self, query: &str, wanted: usize, response: Response) -> Result<Vec<Hit>, ToolError> {
        let unreadable = |why: &str| {
            ToolError::new(
                ErrorCode::ResponseUnreadable,
                format!("cannot read the answer of the search service: {why}"),
            )
        };
        let body = self.body(response).await?.ok_or_else(|| unreadable("it is too long"))?;
        let answer: Value = serde_json::from_slice(&body).map_err(|_| unreadable("it is not JSON"))?;
        let (place, link, snippet) = match self.config.backend {
            Backend::Searxng => ("/results", "url", "content"),
            Backend::Brave => ("/web/results", "url", "description"),
            Backend::Serper => ("/organic", "link", "snippet"),
            Backend::Custom => ("/results", "url", "snippet"),
        };
        // Some services omit the list if it is empty.
        let Some(found) = answer.pointer(place) else {
            return if answer.is_object() { Ok(Vec::new()) } else { Err(unreadable("it is not an object")) };
        };
        let found = found.as_array().ok_or_else(|| unreadable(&format!("{place} is not a list")))?;
        let text = |hit: &Value, name: &str, max_chars| {
            plain(hit.get(name).and_then(Value::as_str).unwrap_or_default(), max_chars)
        };
        let hits = found.iter().filter_map(|hit| {
            Some(Hit {
                query: query.to_owned(),
                title: text(hit, "title", SHOWN_TITLE_CHARS),
                url: hit.get(link)?.as_str()?.to_owned(),
                snippet: text(hit, snippet, SHOWN_SNIPPET_CHARS),
            })
        });
        Ok(hits.take(wanted).collect())
    }

    /// The body of an answer, unless it is too long.
    async fn body(&self, response: Response) -> Result<Option<Vec<u8>>, ToolError> {
        let mut body = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| self.explain(error))?;
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Ok(None);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Some(body))
    }

    /// The error for an answer with an error status.
    async fn refusal(&self, response: Response) -> ToolError {
        let status = response.status();
        let said = self.body(response).await.ok().flatten().unwrap_or_default();
        let said = plain(&self.without_key(&String::from_utf8_lossy(&said)), 200);
        let said = if said.is_empty() { said } else { format!(": {said}") };
        let hint = match (self.config.backend, status) {
            (Backend::Searxng, StatusCode::FORBIDDEN) => "; the instance must list json in search.formats",
            (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                "; see resources.web.search.api_key in the configuration"
            }
            _ => "",
        };
        ToolError::new(ErrorCode::RequestFailed, format!("the search service answers {status}{said}{hint}"))
    }

    fn explain(&self, error: reqwest::Error) -> ToolError {
        if error.is_timeout() {
            let message =
                format!("the search service did not answer within {} seconds", self.config.timeout_seconds);
            return ToolError::new(ErrorCode::Timeout, message);
        }
        let error = error.without_url();
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = error.to_string();
            cause = error.source();
        }
        ToolError::new(
            ErrorCode::RequestFailed,
            format!("cannot reach the search service: {}", self.without_key(&text)),
        )
    }

    fn without_key(&self, text: &str) -> String {
        match &self.config.api_key {
            Some(key) if !key.reveal().is_empty() => text.replace(key.reveal(), "…"),
            _ => text.to_owned(),
        }
    }
}

/// Whether the same request may succeed a little later.
fn is_passing(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
        || status.is_server_error()
}

/// The `Retry-After` of a response.
fn retry_after(response: &Response) -> Option<Duration> {
    parse_retry_after(response.headers().get(header::RETRY_AFTER)?.to_str().ok()?, jiff::Timestamp::now())
}

/// A text without markup, on one line.
fn plain(text: &str, max_chars: usize) -> String {
    // Leaves room for markup, but does not convert megabytes of a hostile page here.
    let mut text: String = text.chars().take(8 * max_chars).collect();
    if text.contains(['<', '&']) {
        text = html::to_markdown(&text, None, || true).markdown.replace("**", "");
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(max_chars).collect()
}

/// Combines the answers to all queries.
fn report(queries: &[String], answers: Vec<Result<Vec<Hit>, ToolError>>) -> Result<Value, ToolError> {
    if let [Err(error)] = answers.as_slice() {
        return Err(error.clone());
    }
    let (mut texts, mut results, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (query, answer) in queries.iter().zip(answers) {
        let heading = if queries.len() > 1 { format!("Results for {query:?}:\n\n") } else { String::new() };
        texts.push(match answer {
            Ok(hits) if hits.is_empty() => format!("{heading}[nothing was found]"),
            Ok(hits) => {
                let text: Vec<_> = hits.iter().zip(1..).map(|(hit, number)| shown(hit, number)).collect();
                results.extend(hits);
                format!("{heading}{}", text.join("\n\n"))
            }
            Err(error) => {
                let text = format!("{heading}[the search failed: {error}]");
                failed.push(json!({"query": query, "code": error.code as u16, "error": error.message}));
                text
            }
        });
    }
    let text = texts.join("\n\n");
    if failed.len() == queries.len() {
        let mut error = ToolError::new(ErrorCode::AllFailed, format!("none of the searches worked.\n{text}"));
        error.data = json!({"failed": failed});
        return Err(error);
    }
    if results.is_empty() && failed.is_empty() {
        let message = format!("nothing was found for {}; try other words", queries.join(", "));
        return Err(ToolError::new(ErrorCode::NoResults, message));
    }
    Ok(json!({"result": text, "results": results, "failed": failed}))
}

fn shown(hit: &Hit, number: usize) -> String {
    let mut text = format!("{number}. {}\n   {}", hit.title, hit.url);
    if !hit.snippet.is_empty() {
        text.push_str(&format!("\n   {}", hit.snippet));
    }
    text
}
