//! Fetches one page, with limits on everything that its server controls.

use std::{error::Error as _, time::Duration};

use futures_util::StreamExt as _;
use reqwest::{Client, Response, header, redirect};
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;

use super::{
    config::{WebConfig, WebConfigError},
    guard::{Guard, PrivateName, PublicNames, Reach},
};
use crate::resource::{ErrorCode, ToolError};

/// The most redirects of a page.
const MAX_REDIRECTS: usize = 5;

/// The most pages in memory at a time, over all sessions.
const MAX_PAGES: usize = 16;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Fetches pages.
#[derive(Debug)]
pub(super) struct Fetcher {
    guard: Guard,
    /// For names that must resolve to the internet.
    public: Client,
    /// For hosts that are allowed.
    anywhere: Client,
    timeout: Duration,
    max_bytes: usize,
    places: Semaphore,
}

/// A fetched page.
#[derive(Debug)]
pub(super) struct Fetched<'f> {
    /// Its final URL.
    pub(super) url: Url,
    /// Its `Content-Type`: `text/html; charset=utf-8`.
    pub(super) content_type: Option<String>,
    /// The part of its content that was read.
    pub(super) body: Vec<u8>,
    /// Whether the content continues.
    pub(super) is_cut: bool,
    /// Counts it among the pages in memory.
    _place: SemaphorePermit<'f>,
}

impl Fetcher {
    pub(super) fn new(config: &WebConfig) -> Result<Self, WebConfigError> {
        for (name, value) in
            [("timeout_seconds", config.timeout_seconds > 0), ("max_bytes", config.max_bytes > 0)]
        {
            if !value {
                return Err(WebConfigError::Zero(name));
            }
        }
        let client = || -> Result<_, WebConfigError> {
            let builder = Client::builder()
                .no_proxy()
                .redirect(redirect::Policy::none())
                .referer(false)
                .connect_timeout(CONNECT_TIMEOUT)
                .user_agent(&config.user_agent);
            let Some(proxy) = &config.proxy else { return Ok(builder) };
            let bad = |_| WebConfigError::Url("proxy");
            Ok(builder.proxy(reqwest::Proxy::all(proxy.reveal()).map_err(bad)?))
        };
        let public = client()?;
        // With a proxy, the only name that is resolved here is that of the proxy.
        let public = if config.proxy.is_none() { public.dns_resolver(PublicNames::shared()) } else { public };
        Ok(Self {
            guard: Guard::new(config)?,
            public: public.build().map_err(WebConfigError::Client)?,
            anywhere: client()?.build().map_err(WebConfigError::Client)?,
            timeout: Duration::from_secs(config.timeout_seconds),
            max_bytes: config.max_bytes,
            places: Semaphore::new(MAX_PAGES),
        })
    }

    /// Fetches a page, and follows its redirects.
    pub(super) async fn fetch(&self, address: &str) -> Result<Fetched<'_>, ToolError> {
        let url = self.guard.parse(address)?;
        self.guard.admit(&url)?;
        let place = self.places.acquire().await.expect("the semaphore is never closed");
        let page = tokio::time::timeout(self.timeout, self.follow(url.clone(), place)).await;
        page.unwrap_or_else(|_| {
            let message = format!("{url} did not load within {} seconds", self.timeout.as_secs());
            Err(ToolError::new(ErrorCode::Timeout, message))
        })
    }

    async fn follow<'f>(&self, start: Url, place: SemaphorePermit<'f>) -> Result<Fetched<'f>, ToolError> {
        let mut url = start.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.ask(&url).await?;
            let status = response.status();
            let next = match response.headers().get(header::LOCATION) {
                Some(next) if matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) => next,
                _ if status.is_success() => return self.read(url, response, place).await,
                _ => return Err(failed(&url, format_args!("its server answers {status}"))),
            };
            url = std::str::from_utf8(next.as_bytes())
                .ok()
                .and_then(|next| url.join(next).ok())
                .ok_or_else(|| failed(&url, format_args!("it redirects to an invalid URL")))?;
        }
        Err(failed(&start, format_args!("it redirects more than {MAX_REDIRECTS} times")))
    }

    async fn ask(&self, url: &Url) -> Result<Response, ToolError> {
        let client = match self.guard.admit(url)? {
            Reach::Public => &self.public,
            Reach::Anywhere => &self.anywhere,
        };
        let request = client.get(url.clone()).header(
            header::ACCEPT,
            "text/html,application/xhtml+xml,text/plain;q=0.9,application/json;q=0.9,*/*;q=0.5",
        );
        request.send().await.map_err(|error| explain(url, error))
    }

    async fn read<'f>(
        &self,
        url: Url,
        response: Response,
        place: SemaphorePermit<'f>,
    ) -> Result<Fetched<'f>, ToolError> {
        let text = |name| {
            let value: Option<&header::HeaderValue> = response.headers().get(name);
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        // The client has removed the header of encodings that it can decompress.
        if let Some(encoding) = text(header::CONTENT_ENCODING).filter(|encoding| encoding != "identity") {
            return Err(failed(
                &url,
                format_args!("it is compressed as {encoding:?}, which is not supported"),
            ));
        }
        let content_type = text(header::CONTENT_TYPE);
        let mut body = Vec::new();
        let mut is_cut = false;
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| explain(&url, error))?;
            let wanted = chunk.len().min(self.max_bytes - body.len());
            body.extend_from_slice(&chunk[..wanted]);
            if wanted < chunk.len() {
                is_cut = true;
                break;
            }
        }
        Ok(Fetched { url, content_type, body, is_cut, _place: place })
    }
}

fn failed(url: &Url, why: std::fmt::Arguments<'_>) -> ToolError {
    ToolError::new(ErrorCode::PageFailed, format!("{url} cannot be read: {why}"))
}

/// Explains an error of the client by its innermost cause, which is the most specific one.
fn explain(url: &Url, error: reqwest::Error) -> ToolError {
    let timed_out = error.is_timeout();
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(private) = error.downcast_ref::<PrivateName>() {
            return ToolError::new(ErrorCode::Refused, format!("{url} is not fetched: {private}"));
        }
        text = error.to_string();
        cause = error.source();
    }
    let code = if timed_out { ErrorCode::Timeout } else { ErrorCode::PageFailed };
    ToolError::new(code, format!("{url} cannot be read: {text}"))
}
