//! `mcp`: the tools of MCP servers, as `mcp:<server>.<tool>`.
//!
//! All sessions share one connection to a server. A server that cannot be reached has no tools until it can;
//! the other servers are not affected.

mod config;

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use futures_util::future::join_all;
use indexmap::IndexMap;
use rollout_core::message::{Content, ToolDef};
use rollout_model::{
    ErrorKind,
    tool::{
        ToolFailure,
        mcp::{McpServer, McpTransport},
    },
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

pub(crate) use config::{McpServerConfig, is_server_name};

use crate::resource::{Call, ErrorCode, Params, Resource, Session, ToolError, ToolSpec};

/// Calls tools of MCP servers.
pub(crate) struct Mcp(Arc<IndexMap<String, Server>>);

struct Server {
    transport: McpTransport,
    /// `None` until it has been reached, and after the connection was lost.
    connection: Mutex<Option<Arc<McpServer>>>,
    /// Its tools, as last reported.
    tools: RwLock<Vec<ToolDef>>,
}

impl Mcp {
    /// Creates the resource from servers by name. No connection is made yet.
    pub(crate) fn new(servers: impl IntoIterator<Item = (String, McpTransport)>) -> Self {
        let servers = servers.into_iter().map(|(name, transport)| {
            (name, Server { transport, connection: Mutex::default(), tools: RwLock::default() })
        });
        Self(Arc::new(servers.collect()))
    }
}

impl Server {
    /// The connection, made if it is missing.
    async fn connect(&self) -> Result<Arc<McpServer>, ToolError> {
        let mut connection = self.connection.lock().await;
        if let Some(server) = &*connection {
            return Ok(Arc::clone(server));
        }
        let server = McpServer::connect(&self.transport).await.map_err(|error| {
            // The text of the error includes its causes.
            let code = ErrorCode::DependencyMissing;
            ToolError::new(code, ToolFailure::from(error).message)
        })?;
        *self.tools.write().unwrap_or_else(PoisonError::into_inner) = server.definitions();
        let server = Arc::new(server);
        *connection = Some(Arc::clone(&server));
        Ok(server)
    }

    /// Forgets a lost connection, unless another call has made a new one meanwhile.
    async fn forget(&self, lost: &Arc<McpServer>) {
        let mut connection = self.connection.lock().await;
        if connection.as_ref().is_some_and(|server| Arc::ptr_eq(server, lost)) {
            *connection = None;
        }
    }

    async fn call(&self, tool: &str, params: Params) -> Result<Value, ToolError> {
        let server = self.connect().await?;
        match server.call(tool, params).await {
            Ok(content) => Ok(result(content)),
            Err(failure) => {
                let lost = failure.name == ErrorKind::Infra.as_str();
                if lost {
                    // The next call starts it again.
                    self.forget(&server).await;
                    server.close().await;
                }
                let code = match failure.name.as_str() {
                    "TimeoutError" => ErrorCode::Timeout,
                    _ if lost => ErrorCode::RequestFailed,
                    _ => ErrorCode::ExecutionError,
                };
                Err(ToolError::new(code, failure.message))
            }
        }
    }
}

fn result(content: Content) -> Value {
    match content {
        Content::Text(text) => json!({"result": text}),
        Content::Parts(parts) => {
            let text = Content::Parts(parts.clone()).text().into_owned();
            json!({"result": text, "parts": parts})
        }
    }
}

#[async_trait]
impl Resource for Mcp {
    fn name(&self) -> &str {
        "mcp"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let of = |(name, server): (&String, &Server)| {
            let tools = server.tools.read().unwrap_or_else(PoisonError::into_inner);
            let spec = |tool: &ToolDef| ToolSpec {
                name: format!("{name}.{}", tool.name),
                aliases: Vec::new(),
                description: tool.description.clone(),
                parameters: tool.parameters.clone(),
            };
            tools.iter().map(spec).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    fn may_have(&self, tool: &str) -> bool {
        let server = tool.split_once('.').and_then(|(server, _)| self.0.get(server));
        server.is_some_and(|server| server.tools.read().unwrap_or_else(PoisonError::into_inner).is_empty())
    }

    async fn warm_up(&self) -> Result<(), ToolError> {
        let connected = self.0.iter().map(async |(name, server)| {
            server.connect().await.err().map(|error| format!("{name}: {}", error.message))
        });
        let failed: Vec<String> = join_all(connected).await.into_iter().flatten().collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(ToolError::new(ErrorCode::DependencyMissing, failed.join("; "))),
        }
    }

    async fn close(&self) {
        let closed = self.0.values().map(async |server| {
            // If the lock is held, a call is connecting, so there is nothing to close yet.
            let connection = server.connection.try_lock().ok().and_then(|mut connection| connection.take());
            if let Some(connection) = connection {
                connection.close().await;
            }
        });
        join_all(closed).await;
    }

    async fn open(&self, _: &Params) -> Result<Box<dyn Session>, ToolError> {
        Ok(Box::new(McpSession(Arc::clone(&self.0))))
    }
}

struct McpSession(Arc<IndexMap<String, Server>>);

#[async_trait]
impl Session for McpSession {
    async fn call(&self, tool: &str, params: Params, _: &Call) -> Result<Value, ToolError> {
        let found = tool.split_once('.').and_then(|(server, tool)| Some((self.0.get(server)?, tool)));
        match found {
            Some((server, tool)) => server.call(tool, params).await,
            None => Err(ToolError::new(
                ErrorCode::InvalidRequest,
                format!("there is no MCP server with {tool:?}"),
            )),
        }
    }
}
