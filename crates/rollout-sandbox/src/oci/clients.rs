//! The HTTP clients for registries and token services, and the redirects that they follow.

use std::time::Duration;

use reqwest::{
    Client, StatusCode, Url,
    redirect::{Action, Attempt, Policy},
};
use tokio::sync::OnceCell;

use super::{answer::connection_failed, error::ImageRegistryError};
use crate::blocking::blocking;

/// How often a server may send a request elsewhere.
const MAX_REDIRECTS: usize = 10;

/// RegistryClients that are created by their first request: most jobs have none, and a client reads all certificates of the
/// machine.
pub(super) struct RegistryClients {
    patience: Duration,
    ordinary: OnceCell<Client>,
    of_secrets: OnceCell<Client>,
}

impl RegistryClients {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, ordinary: OnceCell::new(), of_secrets: OnceCell::new() }
    }

    /// The client for requests without a secret in their body. It removes a login from requests to other servers.
    pub(super) async fn ordinary(&self) -> Result<&Client, ImageRegistryError> {
        self.ordinary.get_or_try_init(|| self.create(Body::Empty)).await
    }

    /// The client for requests with a secret in their body.
    pub(super) async fn of_secrets(&self) -> Result<&Client, ImageRegistryError> {
        self.of_secrets.get_or_try_init(|| self.create(Body::Secret)).await
    }

    async fn create(&self, body: Body) -> Result<Client, ImageRegistryError> {
        let patience = self.patience;
        let created = blocking(move || {
            let builder = Client::builder()
                .redirect(Policy::custom(move |attempt| redirect(attempt, body)))
                .connect_timeout(patience / 4)
                .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
                // Hashes are those of the bytes that the registry has.
                .no_gzip();
            builder.build()
        });
        created.await.map_err(|source| connection_failed("registries".to_owned(), source))
    }
}

/// What the body of a request has.
#[derive(Clone, Copy)]
enum Body {
    Empty,
    Secret,
}

/// What happens with a redirect.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Follow,
    /// The redirect is the answer.
    Stop,
    Refuse(&'static str),
}

fn redirect(attempt: Attempt<'_>, body: Body) -> Action {
    match decide(attempt.status(), attempt.previous(), attempt.url(), body) {
        Decision::Follow => attempt.follow(),
        Decision::Stop => attempt.stop(),
        Decision::Refuse(problem) => attempt.error(problem),
    }
}

fn decide(status: StatusCode, previous: &[Url], next: &Url, body: Body) -> Decision {
    // The first address is that of the request itself.
    if previous.len() > MAX_REDIRECTS {
        return Decision::Refuse("too many redirects");
    }
    let Some(last) = previous.last() else { return Decision::Follow };
    // Anyone on the way could read a plain answer, or send another one that asks for a login.
    if last.scheme() == "https" && next.scheme() == "http" {
        return Decision::Refuse("a redirect leads from https to http");
    }
    // After other redirects, the next request has no body.
    let keeps_body = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    match body {
        Body::Secret if keeps_body && last.origin() != next.origin() => Decision::Stop,
        _ => Decision::Follow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(status: u16, from: &str, to: &str, body: Body) -> Decision {
        let [from, to] = [from, to].map(|url| Url::parse(url).unwrap());
        decide(StatusCode::from_u16(status).unwrap(), &[from], &to, body)
    }

    #[test]
    fn no_redirect_leads_from_https_to_http() {
        let refused = Decision::Refuse("a redirect leads from https to http");
        for (from, to, expected) in [
            ("https://a/x", "http://a/x", refused),
            ("https://a/x", "https://b/x", Decision::Follow),
            ("http://a/x", "https://a/x", Decision::Follow),
            ("http://a/x", "http://b/x", Decision::Follow),
        ] {
            assert_eq!(decision(307, from, to, Body::Empty), expected, "{from} {to}");
        }
        assert_ne!(decision(307, "https://a/x", "http://a/x", Body::Secret), Decision::Follow);
    }

    #[test]
    fn a_secret_in_a_body_is_sent_to_no_other_server() {
        for (status, to, expected) in [
            (307, "https://a/y", Decision::Follow),
            (307, "https://b/x", Decision::Stop),
            (308, "https://a:8443/x", Decision::Stop),
            (303, "https://b/x", Decision::Follow),
        ] {
            assert_eq!(decision(status, "https://a/x", to, Body::Secret), expected, "{status} {to}");
        }
    }

    #[test]
    fn the_number_of_redirects_is_limited() {
        let url = Url::parse("https://a/x").unwrap();
        let after = |count: usize| decide(StatusCode::FOUND, &vec![url.clone(); count], &url, Body::Empty);
        assert_eq!(after(MAX_REDIRECTS), Decision::Follow);
        assert_eq!(after(MAX_REDIRECTS + 1), Decision::Refuse("too many redirects"));
    }
}
