//! The web tools against servers on this machine, friendly and hostile.

mod browse;
mod search;

use std::{net::SocketAddr, time::Duration};

use rollout_tools::{
    Call, Params, Resource as _, ToolError,
    web::{Web, WebConfig},
};
use serde_json::Value;
use tokio::net::TcpListener;

/// Calls a web tool in a separate session.
async fn call(config: Value, tool: &str, params: Value) -> Result<Value, ToolError> {
    let config: WebConfig = serde_json::from_value(config).unwrap();
    let session = Web::new(config).unwrap().open(&Params::new()).await.unwrap();
    let call = Call {
        worker_id: "worker".to_owned(),
        session_id: "session".to_owned(),
        timeout: Duration::from_secs(60),
    };
    let outcome = session.call(tool, params.as_object().unwrap().clone(), &call).await;
    session.close().await;
    outcome
}

/// Serves an application on a port of this machine while the test runs.
async fn serve(app: axum::Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}
