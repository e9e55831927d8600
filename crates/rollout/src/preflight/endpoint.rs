//! Checks whether the servers of models can be reached.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use reqwest::{Client, Url, redirect};
use tokio::{net::TcpStream, time::timeout};

use super::{Finding, FindingKind};
use crate::config::{DatasetSource, JobConfig, ModelConfig, RolloutConfig, ScoreConfig, UserKind};
use rollout_core::text::chain;
use rollout_model::metric::Metric;

/// A server that takes longer may still be starting; trials try again.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Finds the servers of agents, judges and simulated users that cannot be reached. Any answer counts, and no key is
/// sent.
pub fn unreachable_models(config: &JobConfig) -> BoxFuture<'_, Vec<Finding>> {
    let mut servers = Servers::default();
    for agent in &config.agents {
        agent.model().into_iter().for_each(|model| servers.add(model, format!("agent {}", agent.name)));
    }
    for dataset in &config.datasets {
        let DatasetSource::Interaction(interaction) = &dataset.source else { continue };
        for entry in &interaction.rubric {
            if let ScoreConfig::Judge { model, .. } = &entry.score {
                servers.add(model, format!("the judge of {}", dataset.name));
            }
        }
        if let Some(UserKind::Model { model, .. }) = interaction.user.as_ref().map(|user| &user.played_by) {
            servers.add(model, format!("the user of {}", dataset.name));
        }
    }
    Box::pin(servers.unreachable())
}

/// The same for the model of a benchmark and its judge.
pub fn unreachable_models_of_benchmark(config: &RolloutConfig) -> BoxFuture<'static, Vec<Finding>> {
    let mut servers = Servers::default();
    servers.add(&config.model(), "the model".to_owned());
    if config.evaluate_results && config.evaluation_metric == Metric::LlmJudgement {
        servers.add(&config.evaluator(), "the judge".to_owned());
    }
    Box::pin(servers.unreachable())
}

/// The base URLs of models, each with what uses it.
#[derive(Default)]
struct Servers(BTreeMap<String, Vec<String>>);

impl Servers {
    fn add(&mut self, model: &ModelConfig, subject: String) {
        for url in &model.base_urls {
            let subjects = self.0.entry(url.clone()).or_default();
            if !subjects.contains(&subject) {
                subjects.push(subject.clone());
            }
        }
    }

    async fn unreachable(self) -> Vec<Finding> {
        let asked = self.0.into_iter().map(|(url, subjects)| async move {
            let url = Url::parse(url.trim()).ok()?;
            let server = url.origin().ascii_serialization();
            let error = failure(url).await?;
            let message = format!("the model server at {server} does not answer: {error}");
            Some(Finding { kind: FindingKind::ModelServer, message, subjects })
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}

/// Why there is no connection to a server.
async fn failure(url: Url) -> Option<String> {
    // The common case is a server of this machine, and a client reads all certificates of the machine.
    if url.scheme() == "http" {
        let host = url.host_str()?.trim_matches(['[', ']']);
        let connection = TcpStream::connect((host, url.port_or_known_default()?));
        if !matches!(timeout(TIMEOUT, connection).await, Ok(Err(_))) {
            return None;
        }
    }
    // The server may be reachable only through a proxy, which this client uses.
    let client = Client::builder().timeout(TIMEOUT).redirect(redirect::Policy::none()).build().ok()?;
    let error = client.get(url).send().await.err().filter(reqwest::Error::is_connect)?;
    Some(chain(&error.without_url()))
}
