//! Tools of MCP servers.
//!
//! A server is started, or connected to, once, and serves all rollouts that use its tools: calls of different rollouts
//! run concurrently, and the state of a server is shared by all of them.

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::{
    RoleClient, ServiceError, ServiceExt as _,
    model::{CallToolRequestParams, CallToolResult, ContentBlock, ResourceContents},
    service::{ClientInitializeError, RunningService},
    transport::{StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig},
};
use serde_json::{Value, json};

use crate::tool::{Arguments, Tool, ToolFailure};
use crate::{
    ErrorKind, State,
    process::{Process, Said},
};
use rollout_core::message::{Content, ToolDef};

/// The timeout for starting a server and listing its tools.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest tool name that model servers accept.
const MAX_NAME_CHARS: usize = 64;

/// How to reach a server.
#[derive(Clone)]
pub enum McpTransport {
    /// A process that is started, and communicates on its standard input and output.
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Variables in addition to those of this process.
        env: Vec<(String, String)>,
        /// Its working directory; that of this process if absent.
        directory: Option<PathBuf>,
    },
    /// A running server.
    Http {
        /// Its URL.
        url: String,
        /// Headers of each request.
        headers: Vec<(String, String)>,
    },
}

impl McpTransport {
    /// Its name in messages: values of variables and headers may be secret, and so may URLs.
    fn label(&self) -> String {
        match self {
            Self::Command { argv, .. } => argv.first().cloned().unwrap_or_default(),
            Self::Http { url, .. } => {
                let url = url.split(['?', '#']).next().unwrap_or(url);
                match url.split_once("://").map(|(scheme, rest)| (scheme, rest.split_once('@'))) {
                    Some((scheme, Some((_, rest)))) => format!("{scheme}://{rest}"),
                    _ => url.to_owned(),
                }
            }
        }
    }
}

impl fmt::Debug for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("McpTransport").field(&self.label()).finish()
    }
}

/// Why the tools of a server are not available.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// Its program cannot be started.
    #[error("cannot start the MCP server `{server}`")]
    Spawn {
        /// The program.
        server: String,
        /// The cause.
        source: io::Error,
    },
    /// A header is invalid.
    #[error("invalid header `{0}` or value")]
    Header(String),
    /// The HTTP client cannot be set up.
    #[error("cannot set up the HTTP client for MCP servers")]
    Http(#[source] reqwest::Error),
    /// The initialization failed.
    #[error("cannot initialize the MCP server `{server}`{said}")]
    Start {
        /// The server.
        server: String,
        /// Its standard error, on separate lines.
        said: String,
        /// The cause.
        source: Box<ClientInitializeError>,
    },
    /// The list of tools failed.
    #[error("cannot list the tools of the MCP server `{server}`{said}")]
    List {
        /// The server.
        server: String,
        /// Its standard error, on separate lines.
        said: String,
        /// The cause.
        source: Box<ServiceError>,
    },
    /// It timed out.
    #[error("the MCP server `{server}` did not start within {} seconds{said}", START_TIMEOUT.as_secs())]
    Timeout {
        /// The server.
        server: String,
        /// Its standard error, on separate lines.
        said: String,
    },
}

/// A connection to a server. Its process, if it has one, ends with the last clone and the last of its tools, or when
/// the connection is [closed](Self::close).
#[derive(Clone)]
pub struct McpServer(Arc<Connection>);

struct Connection {
    label: String,
    service: RunningService<RoleClient, ()>,
    /// None for a server that this process did not start, and after it was closed.
    process: Mutex<Option<Process>>,
    said: Option<Said>,
    tools: Vec<rmcp::model::Tool>,
}

impl McpServer {
    /// Starts a server, or connects to one, and lists its tools.
    pub fn connect(transport: &McpTransport) -> BoxFuture<'_, Result<Self, McpError>> {
        Box::pin(async move {
            let label = transport.label();
            match transport {
                McpTransport::Command { argv, env, directory } => {
                    let spawned = Process::spawn(argv, env, directory.as_deref());
                    let (process, stdout, stdin) =
                        spawned.map_err(|source| McpError::Spawn { server: label.clone(), source })?;
                    Self::serve(label, ().serve((stdout, stdin)), Some(process)).await
                }
                McpTransport::Http { url, headers } => {
                    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                    config.custom_headers = parse_headers(headers)?;
                    // No pooling: a connection reused after a stream stalls. No redirects: no other host may see the
                    // headers.
                    let client = reqwest::Client::builder()
                        .pool_max_idle_per_host(0)
                        .redirect(reqwest::redirect::Policy::none());
                    let client = client.build().map_err(McpError::Http)?;
                    let transport = StreamableHttpClientTransport::with_client(client, config);
                    Self::serve(label, ().serve(transport), None).await
                }
            }
        })
    }

    async fn serve(
        server: String,
        start: impl Future<Output = Result<RunningService<RoleClient, ()>, ClientInitializeError>>,
        process: Option<Process>,
    ) -> Result<Self, McpError> {
        let started = async {
            let service = start.await.map_err(|error| Failed::Start(Box::new(error)))?;
            let tools = service.list_all_tools().await.map_err(|error| Failed::List(Box::new(error)))?;
            Ok((service, tools))
        };
        let said = process.as_ref().map(Process::stderr);
        let failed = match tokio::time::timeout(START_TIMEOUT, started).await {
            Ok(Ok((service, tools))) => {
                let process = Mutex::new(process);
                return Ok(Self(Arc::new(Connection { label: server, service, process, said, tools })));
            }
            Ok(Err(failed)) => Some(failed),
            Err(_) => None,
        };
        if let Some(process) = process {
            process.end().await;
        }
        let said = said.map(|said| said.as_suffix()).unwrap_or_default();
        Err(match failed {
            Some(Failed::Start(source)) => McpError::Start { server, said, source },
            Some(Failed::List(source)) => McpError::List { server, said, source },
            None => McpError::Timeout { server, said },
        })
    }

    /// Its tools. If a name is among `taken`, the name of the server is put before it, or a number after it. Characters
    /// that model servers reject become `_`.
    pub fn tools(&self, taken: &[&str]) -> Vec<Arc<dyn Tool>> {
        let mut taken: HashSet<String> = taken.iter().map(|name| (*name).to_owned()).collect();
        let info = self.0.service.peer_info();
        let server = info.and_then(|info| Some(info.server_info.as_ref()?.name.clone())).unwrap_or_default();
        let tools = self.0.tools.iter().map(|tool| {
            let name = free_name(&tool.name, &server, &taken);
            taken.insert(name.clone());
            let def = ToolDef { name, ..definition(tool) };
            let tool = McpTool { def, name: tool.name.clone().into_owned(), connection: Arc::clone(&self.0) };
            Arc::new(tool) as Arc<dyn Tool>
        });
        tools.collect()
    }

    /// The definitions of its tools, under the server's names.
    pub fn definitions(&self) -> Vec<ToolDef> {
        self.0.tools.iter().map(definition).collect()
    }

    /// Calls a tool under the server's name, independent of a rollout.
    pub fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: Arguments,
    ) -> BoxFuture<'a, Result<Content, ToolFailure>> {
        Box::pin(async move { self.0.call(tool, arguments).await })
    }

    /// Closes the connection for all its tools, and ends the server's process with its descendants.
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.service.cancellation_token().cancel();
            let process = self.0.process.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(process) = process {
                process.end().await;
            }
        })
    }
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("McpServer").field(&self.0.label).finish()
    }
}

fn definition(tool: &rmcp::model::Tool) -> ToolDef {
    ToolDef {
        name: tool.name.clone().into_owned(),
        description: tool.description.as_deref().unwrap_or_default().to_owned(),
        parameters: Value::Object((*tool.input_schema).clone()),
        strict: None,
    }
}

enum Failed {
    Start(Box<ClientInitializeError>),
    List(Box<ServiceError>),
}

fn parse_headers(headers: &[(String, String)]) -> Result<HashMap<HeaderName, HeaderValue>, McpError> {
    let parsed = headers.iter().map(|(name, value)| {
        let refused = || McpError::Header(name.clone());
        let mut value = HeaderValue::from_str(value).map_err(|_| refused())?;
        value.set_sensitive(true);
        Ok((HeaderName::try_from(name).map_err(|_| refused())?, value))
    });
    parsed.collect()
}

fn free_name(name: &str, server: &str, taken: &HashSet<String>) -> String {
    let fit = |name: &str| -> String {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
        name.chars().take(MAX_NAME_CHARS).map(allowed).collect()
    };
    let plain = fit(name);
    let with_server = || fit(&format!("{server}_{name}"));
    let numbered = (2..).map(|number: u32| {
        let suffix = format!("_{number}");
        format!("{}{suffix}", &plain[..plain.len().min(MAX_NAME_CHARS - suffix.len())])
    });
    let mut names = std::iter::once(plain.clone()).chain(std::iter::once_with(with_server)).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or(plain)
}

struct McpTool {
    def: ToolDef,
    /// The name on the server.
    name: String,
    connection: Arc<Connection>,
}

#[async_trait]
impl Tool for McpTool {
    fn def(&self) -> &ToolDef {
        &self.def
    }

    async fn call(&self, arguments: Arguments, _state: &mut State) -> Result<Content, ToolFailure> {
        self.connection.call(&self.name, arguments).await
    }
}

impl Connection {
    async fn call(&self, tool: &str, arguments: Arguments) -> Result<Content, ToolFailure> {
        let call = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        match tokio::time::timeout(CALL_TIMEOUT, self.service.call_tool(call)).await {
            Ok(Ok(result)) => content(result),
            Ok(Err(ServiceError::McpError(error))) => Err(ToolFailure::new("McpError", error.message)),
            Ok(Err(error)) => Err(self.lost(&error)),
            Err(_) => {
                let text = format!("the tool timed out after {} seconds", CALL_TIMEOUT.as_secs());
                Err(ToolFailure::new("TimeoutError", text))
            }
        }
    }

    /// The connection to the server is lost: every other call would fail too.
    fn lost(&self, error: &ServiceError) -> ToolFailure {
        let said = self.said.as_ref().map(Said::as_suffix).unwrap_or_default();
        let text = format!("lost the connection to the MCP server `{}`: {error}{said}", self.label);
        ToolFailure::new(ErrorKind::Infra.as_str(), text)
    }
}

fn content(result: CallToolResult) -> Result<Content, ToolFailure> {
    let failed = result.is_error == Some(true);
    let content = match (result.content, result.structured_content) {
        (blocks, Some(structured)) if blocks.is_empty() => Content::Text(structured.to_string()),
        (blocks, _) => of_blocks(blocks),
    };
    if failed {
        return Err(ToolFailure::new("McpToolError", content.text()));
    }
    Ok(content)
}

/// Text if there is nothing else, because not every model server accepts parts from tools.
fn of_blocks(blocks: Vec<ContentBlock>) -> Content {
    let parts: Vec<Value> = blocks.into_iter().map(part).collect();
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    if texts.len() == parts.len() { Content::Text(texts.join("\n")) } else { Content::Parts(parts) }
}

fn part(block: ContentBlock) -> Value {
    let text = match block {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(image) => {
            let url = format!("data:{};base64,{}", image.mime_type, image.data);
            return json!({"type": "image_url", "image_url": {"url": url}});
        }
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text,
            other => json!(other).to_string(),
        },
        other => json!(other).to_string(),
    };
    json!({"type": "text", "text": text})
}

#[cfg(test)]
mod tests {
    use crate::tool::mcp::*;

    #[test]
    fn names_are_made_valid_and_unique() {
        let taken = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<HashSet<_>>();
        assert_eq!(free_name("files/read it", "disk", &taken(&[])), "files_read_it");
        assert_eq!(free_name("read", "disk", &taken(&["read"])), "disk_read");
        assert_eq!(free_name("read", "disk", &taken(&["read", "disk_read"])), "read_2");
        assert_eq!(free_name("read", "disk", &taken(&["read", "disk_read", "read_2"])), "read_3");
        let long = "é".repeat(100);
        assert_eq!(free_name(&long, "disk", &taken(&[])), "_".repeat(64));
        let all = taken(&["_".repeat(64).as_str(), &format!("disk{}", "_".repeat(60))]);
        assert_eq!(free_name(&long, "disk", &all), format!("{}_2", "_".repeat(62)));
    }

    #[test]
    fn messages_show_neither_credentials_nor_queries_of_a_url() {
        let http = |url: &str| McpTransport::Http { url: url.to_owned(), headers: Vec::new() }.label();
        assert_eq!(http("https://ann:secret@host/mcp?key=1#x"), "https://host/mcp");
        assert_eq!(http("https://host/mcp"), "https://host/mcp");
    }
}
