//! Whether the servers of models can be reached.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use reqwest::Client;

use super::{Finding, FindingKind};
use crate::config::{AgentKind, JobConfig, ModelConfig};
use rollout_core::text::chain;

/// A server that takes longer may still be starting, and is asked again when a trial needs it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Finds the servers that no connection can be made to, of the models that have a key. Any answer is an answer, and
/// the key is not sent.
pub async fn unreachable_models(config: &JobConfig) -> Vec<Finding> {
    let mut servers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for agent in &config.agents {
        let AgentKind::Model(model) = &agent.kind else { continue };
        let ModelConfig { base_urls, api_key, .. } = &model.model;
        for url in base_urls.iter().filter(|_| api_key.is_some()) {
            servers.entry(url).or_default().push(format!("agent {}", agent.name));
        }
    }
    let Ok(client) = Client::builder().timeout(PATIENCE).build() else { return Vec::new() };
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
}

fn without_credentials(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(url) => url.origin().ascii_serialization(),
        Err(_) => "its base_url".to_owned(),
    }
}
