//! Checks whether the servers of models can be reached.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use reqwest::Client;

use super::{Finding, FindingKind};
use crate::config::{AgentKind, JobConfig, ModelConfig};
use rollout_core::text::chain;

/// A server that takes longer may still be starting; trials try again.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Finds the servers that cannot be reached, of models with a key. Any answer counts, and the key is not sent.
pub fn unreachable_models(config: &JobConfig) -> BoxFuture<'_, Vec<Finding>> {
    Box::pin(async move {
        let mut servers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for agent in &config.agents {
            let model = match &agent.kind {
                AgentKind::Model(agent) => Some(&agent.model),
                AgentKind::Preset(agent) => agent.model.as_ref(),
                AgentKind::Oracle | AgentKind::Nop | AgentKind::Script { .. } => None,
            };
            let Some(ModelConfig { base_urls, api_key, .. }) = model else { continue };
            for url in base_urls.iter().filter(|_| api_key.is_some()) {
                servers.entry(url).or_default().push(format!("agent {}", agent.name));
            }
        }
        if servers.is_empty() {
            // A client reads all certificates of the machine.
            return Vec::new();
        }
        let Ok(client) = Client::builder().timeout(TIMEOUT).build() else { return Vec::new() };
        let asked = servers.into_iter().map(|(url, subjects)| {
            let client = &client;
            async move {
                let error = client.get(url).send().await.err().filter(|error| error.is_connect())?;
                let message = format!(
                    "the model server at {} does not answer: {}",
                    without_credentials(url),
                    chain(&error.without_url())
                );
                Some(Finding { kind: FindingKind::ModelServer, message, subjects })
            }
        });
        join_all(asked).await.into_iter().flatten().collect()
    })
}

fn without_credentials(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(url) => url.origin().ascii_serialization(),
        Err(_) => "its base_url".to_owned(),
    }
}
