//! Serves the pages of a directory to the browser of the person who started it.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use futures_util::{future::BoxFuture, stream};
use rollout_http::{AccessGuard, AccessToken, ConnectionLimits};
use rollout_record::notes::MAX_COMMENT_CHARS;
use tokio::{io::AsyncReadExt as _, net::TcpListener};
use tokio_util::sync::CancellationToken;

use crate::{
    error::ViewError,
    library::Library,
    links::{Address, Delivery},
    live::{self, Watched},
    options::ViewOptions,
    pages::{self, Here},
    site::{self, Found},
};

/// What a page may do: show its own files, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What a file of a trial may do: nothing.
const FILE_POLICY: &str = "default-src 'none'; sandbox; frame-ancestors 'none'";

/// The largest form: a comment of the maximum length, each of its bytes as three characters.
const MAX_FORM_BYTES: usize = 3 * 4 * MAX_COMMENT_CHARS + 4096;

/// How long a form may take.
const FORM_TIME: Duration = Duration::from_secs(30);

/// The size of the parts in which files are sent.
const CHUNK_BYTES: usize = 64 * 1024;

/// A viewer that is ready to serve.
#[derive(Debug)]
pub struct Viewer {
    listener: TcpListener,
    address: SocketAddr,
    token: String,
    library: Arc<Library>,
}

/// What requests share.
#[derive(Debug)]
struct Service {
    library: Arc<Library>,
    token: AccessToken,
    stop: CancellationToken,
}

impl Viewer {
    /// Opens a directory of jobs, or a job, and listens at an address.
    pub fn open(
        dir: &Path,
        address: SocketAddr,
        options: ViewOptions,
    ) -> BoxFuture<'_, Result<Self, ViewError>> {
        Box::pin(async move {
            let library = Arc::new(Library::open(dir, options)?);
            let listen = |source| ViewError::Listen { address, source };
            let listener = TcpListener::bind(address).await.map_err(listen)?;
            let address = listener.local_addr().map_err(listen)?;
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes).map_err(ViewError::Random)?;
            Ok(Self { listener, address, token: rollout_core::text::hex(&bytes), library })
        })
    }

    /// The address with the token, for the browser.
    pub fn url(&self) -> String {
        format!("http://{}/{}/index.html", self.address, self.token)
    }

    /// Serves until it is stopped.
    pub fn serve(self, stop: CancellationToken) -> BoxFuture<'static, std::io::Result<()>> {
        let token = AccessToken::new(&self.token).expect("a token of hexadecimal digits is valid");
        let service = Service { library: self.library, token, stop: stop.clone() };
        let router = Router::new().fallback(answer).with_state(Arc::new(service));
        // The guard checks the Host. The token is in the path, because a cookie would be sent to every other server of
        // this machine too.
        let router = AccessGuard::new(self.address.ip(), None).protect(router, |denied| {
            with_headers((denied.status(), denied.to_string()).into_response(), POLICY)
        });
        rollout_http::serve(self.listener, router, ConnectionLimits::default(), stop)
    }
}

async fn answer(State(service): State<Arc<Service>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let response = match parts.method == Method::POST {
        true => add_note(&service, &parts, body).await,
        false => respond(&service, &parts).await,
    };
    match response {
        Ok(response) => response,
        Err(refused) => with_headers(refused.into_response(), POLICY),
    }
}

/// A request that is not answered with a page.
type Refused = (StatusCode, &'static str);

/// The path of a request behind the token. Other sites and requests without the token are refused.
fn guarded<'r>(service: &Service, request: &'r Parts) -> Result<&'r str, Refused> {
    if !is_own_origin(&request.headers) {
        return Err((StatusCode::FORBIDDEN, "the request comes from another site"));
    }
    let path = request.uri.path().trim_start_matches('/');
    let (token, path) = path.split_once('/').unwrap_or((path, ""));
    if !service.token.is(token.as_bytes()) {
        return Err((
            StatusCode::FORBIDDEN,
            "open the address that `rollout view` printed: it contains a token",
        ));
    }
    Ok(path)
}

/// Adds a note to a trial, and leads back to its page.
async fn add_note(service: &Service, request: &Parts, body: Body) -> Result<Response, Refused> {
    let path = guarded(service, request)?;
    let page = path.strip_suffix("note").and_then(|dir| site::parse(&format!("{dir}index.html"), ""));
    let Some(address @ Address::Trial { .. }) = page else {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET is supported"));
    };
    // Browsers send it with every form. Without it, the site that a form is on is unknown.
    if !request.headers.contains_key(header::ORIGIN) {
        return Err((StatusCode::FORBIDDEN, "the request has no Origin"));
    }
    let kind = request.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_none_or(|kind| !kind.starts_with("application/x-www-form-urlencoded")) {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "the note must be sent as a form"));
    }
    let form = tokio::time::timeout(FORM_TIME, axum::body::to_bytes(body, MAX_FORM_BYTES)).await;
    let too_slow = (StatusCode::REQUEST_TIMEOUT, "the note did not arrive in time");
    let too_large = (StatusCode::PAYLOAD_TOO_LARGE, "the note is too large");
    let form = form.map_err(|_| too_slow)?.map_err(|_| too_large)?;
    let library = Arc::clone(&service.library);
    let added = tokio::task::spawn_blocking(move || {
        let Address::Trial { job, trial, .. } = &address else { return Ok(()) };
        let added = site::note(&library, job, trial, &form);
        added.map_err(|error| problem(&error, &Here::new(&address, Delivery::Served)))
    });
    let failed = (StatusCode::INTERNAL_SERVER_ERROR, "the note could not be added");
    match added.await.map_err(|_| failed)? {
        Ok(()) => {
            let back = (StatusCode::SEE_OTHER, [(header::LOCATION, "index.html#notes")]);
            Ok(with_headers(back.into_response(), POLICY))
        }
        Err((status, page)) => Ok(with_headers((status, html(page)).into_response(), POLICY)),
    }
}

async fn respond(service: &Service, request: &Parts) -> Result<Response, Refused> {
    if ![Method::GET, Method::HEAD].contains(&request.method) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET is supported"));
    }
    let path = guarded(service, request)?;
    if let Some(watched) = watched(path) {
        let events = live::events(Arc::clone(&service.library), watched, service.stop.clone());
        return Ok(with_headers(events.into_response(), POLICY));
    }
    let query = request.uri.query().unwrap_or_default();
    if let Some(comparison) = site::chosen(path, query) {
        let to = (header::LOCATION, comparison.path(Delivery::Served));
        return Ok(with_headers((StatusCode::SEE_OTHER, [to]).into_response(), POLICY));
    }
    let Some(address) = site::parse(path, query) else {
        return Err((StatusCode::NOT_FOUND, "there is no such page"));
    };
    let library = Arc::clone(&service.library);
    let found = tokio::task::spawn_blocking(move || {
        let found = site::find(&library, &address, Delivery::Served);
        found.map_err(|error| problem(&error, &Here::new(&address, Delivery::Served)))
    });
    let failed = (StatusCode::INTERNAL_SERVER_ERROR, "the page could not be rendered");
    match found.await.map_err(|_| failed)? {
        Ok(found) => Ok(delivered(found)),
        Err((status, page)) => Ok(with_headers((status, html(page)).into_response(), POLICY)),
    }
}

/// The page of an error. Its causes are shown, because the reader is the owner of the files.
fn problem(error: &ViewError, here: &Here) -> (StatusCode, String) {
    let status = match error {
        ViewError::NotFound(_) | ViewError::File { .. } | ViewError::Compare(_) => StatusCode::NOT_FOUND,
        ViewError::Notes(error) if error.is_of_note() => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut message = rollout_core::text::chain(error);
    if let ViewError::Notes(error) = error
        && let Some(hint) = error.hint()
    {
        message.push_str(&format!("; {hint}"));
    }
    let page = pages::problem(message, here).unwrap_or_else(|_| "the page could not be rendered".to_owned());
    (status, page)
}

/// The events of a page: `events` beside it.
fn watched(path: &str) -> Option<Watched> {
    let page = path.strip_suffix("events")?;
    match site::parse(&format!("{page}index.html"), "")? {
        Address::Jobs => Some(Watched::Jobs),
        Address::Job { job, .. } => Some(Watched::Job(job)),
        Address::Trial { job, trial, .. } | Address::File { job, trial, .. } => {
            Some(Watched::Trial(job, trial))
        }
        _ => None,
    }
}

/// Whether a request comes from a page of this server, or from no page. A link on another site may lead here.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("invalid"));
    let host = text(header::HOST).unwrap_or_default();
    let is_own = text(header::ORIGIN).is_none_or(|origin| {
        // A proxy with TLS in front of this server changes the scheme.
        ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host))
    });
    let site = text(HeaderName::from_static("sec-fetch-site"));
    let mode = text(HeaderName::from_static("sec-fetch-mode"));
    let is_foreign = matches!(site, Some("cross-site" | "same-site"));
    is_own && (!is_foreign || mode == Some("navigate"))
}

fn delivered(found: Found) -> Response {
    match found {
        Found::Page(page) => with_headers(html(page), POLICY),
        Found::Asset { kind, bytes } => {
            with_headers(([(header::CONTENT_TYPE, kind)], Bytes::from_static(bytes)).into_response(), POLICY)
        }
        Found::File { kind, file } => {
            let file = tokio::fs::File::from_std(file);
            let chunks = stream::try_unfold(file, async |mut file| {
                let mut chunk = vec![0; CHUNK_BYTES];
                let length = file.read(&mut chunk).await?;
                chunk.truncate(length);
                Ok::<_, std::io::Error>((length > 0).then_some((chunk, file)))
            });
            let body = Body::from_stream(chunks);
            with_headers(([(header::CONTENT_TYPE, kind)], body).into_response(), FILE_POLICY)
        }
    }
}

fn html(page: String) -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
}

/// Adds the headers that all responses have.
fn with_headers(mut response: Response, policy: &'static str) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer`, browsers hide the origin of a form too. Other sites see nothing either way.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
