//! The network of a phase: some tasks take it away, or give it back, while an environment runs, and some allow only a
//! list of hosts.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::{calls::required, context::TrialContext, failure::Failure, services::Services};
use crate::{config::NetworkPolicy, egress::EgressProxy, task::Task};
use rollout_core::{event::Phase, hosts::HostList, result::ErrorType};
use rollout_env::{Demand, Environment, compose::ComposeFile};

/// The way out of the environments of a trial with an allow-list.
pub(super) struct Egress {
    proxy: EgressProxy,
    /// Hosts that are reached without the proxy.
    direct: String,
    state: Mutex<EgressState>,
}

#[derive(Default)]
struct EgressState {
    /// The port of the proxy in each environment.
    ports: HashMap<String, u16>,
    /// The port in the environment of this phase, if it has an allow-list.
    current: Option<u16>,
}

impl Egress {
    /// Starts the proxy of a trial, if its task has an allow-list.
    pub(super) async fn of_task(task: &Task, compose: Option<&ComposeFile>) -> Result<Option<Self>, Failure> {
        let config = &task.config;
        let steps = config.steps.iter().flat_map(|step| [&step.agent_network, &step.verifier_network]);
        let all = [&config.network, &config.agent_network, &config.verifier_network];
        let own = config.steps.iter().map(|step| &step.verifier_own_environment);
        let own = own.chain([&config.verifier_own_environment]).flatten().map(|own| &own.network);
        let has_list = |policy: &Option<NetworkPolicy>| matches!(policy, Some(NetworkPolicy::Allowlist(_)));
        if !all.into_iter().chain(steps).chain(own).any(has_list) {
            return Ok(None);
        }
        let proxy = EgressProxy::start().await.map_err(|error| {
            Failure::new(ErrorType::InternalError, format!("cannot start the proxy of the trial: {error}"))
        })?;
        let services =
            compose.iter().flat_map(|compose| &compose.services).map(|service| service.name.as_str());
        let direct: Vec<&str> = ["localhost", "127.0.0.1", "::1"].into_iter().chain(services).collect();
        Ok(Some(Self { proxy, direct: direct.join(","), state: Mutex::default() }))
    }

    /// Lets an environment reach these hosts from now on, and no other environment any.
    async fn open(
        &self,
        environment: &dyn Environment,
        hosts: &HostList,
        phase: Phase,
    ) -> Result<(), Failure> {
        let known = self.state().ports.get(environment.id()).copied();
        let port = match known {
            Some(port) => port,
            None => required(phase, environment.offer(self.proxy.address())).await?,
        };
        let mut state = self.state();
        state.ports.insert(environment.id().to_owned(), port);
        state.current = Some(port);
        self.proxy.allow(hosts.clone());
        Ok(())
    }

    fn close(&self) {
        self.state().current = None;
        self.proxy.allow(HostList::default());
    }

    fn state(&self) -> std::sync::MutexGuard<'_, EgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The variables by which programs find the proxy, if there is one in this phase.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        let Some(port) = self.state().current else { return Vec::new() };
        let url = format!("http://127.0.0.1:{port}");
        let proxies =
            ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, url.clone()));
        let direct = ["NO_PROXY", "no_proxy"].map(|name| (name, self.direct.clone()));
        proxies.into_iter().chain(direct).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// A note about the hosts that were refused.
    pub(super) fn note(&self) -> Option<String> {
        let refused = self.proxy.refused();
        let text = format!("hosts that are not in allowed_hosts were refused: {}", refused.join(", "));
        (!refused.is_empty()).then_some(text)
    }
}

/// Whether the network of the agent's environment changes between phases. The container then needs one.
pub(super) fn changes(context: &TrialContext<'_>) -> bool {
    let config = &context.task.config;
    let steps = config.steps.iter().flat_map(|step| [&step.agent_network, &step.verifier_network]);
    let phases = [&config.agent_network, &config.verifier_network];
    let baseline = is_public(context);
    phases.into_iter().chain(steps).flatten().any(|policy| is_on(Some(policy)) != baseline)
        && context.trial.provider.refusal(Demand::NetworkChanges).is_none()
}

/// Whether the environment has a network outside of its phases.
pub(super) fn is_public(context: &TrialContext<'_>) -> bool {
    is_on(context.task.config.network.as_ref())
}

/// Whether the environment has no network at some time.
pub(super) fn is_restricted(context: &TrialContext<'_>) -> bool {
    !is_public(context) || changes(context)
}

/// Gives the environment and its services the network of a phase; without one, that of the environment itself.
pub(super) async fn enter(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    services: &Services,
    phase: Option<&NetworkPolicy>,
) -> Result<(), Failure> {
    let policy = phase.or(context.task.config.network.as_ref());
    // Only a phase of the agent or of the tests has a policy of its own. An agent that makes it fail fails its trial.
    let during = if phase.is_some() { Phase::Execute } else { Phase::Start };
    allow(context, environment, policy, during).await?;
    if !changes(context) {
        return Ok(());
    }
    if services.main_settings().is_some() {
        return services.set_network(environment, is_on(policy), Phase::Execute).await;
    }
    required(Phase::Execute, environment.set_network(is_on(policy))).await
}

/// Lets an environment reach the hosts of an allow-list, if the policy has one.
pub(super) async fn allow(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    policy: Option<&NetworkPolicy>,
    phase: Phase,
) -> Result<(), Failure> {
    let Some(egress) = context.egress else { return Ok(()) };
    match policy {
        Some(NetworkPolicy::Allowlist(hosts))
            if context.trial.provider.refusal(Demand::Allowlist).is_none() =>
        {
            egress.open(environment, hosts, phase).await
        }
        _ => {
            egress.close();
            Ok(())
        }
    }
}

/// Whether a container has a network. With an allow-list it has none: the proxy is its only way out.
pub(super) fn is_on(policy: Option<&NetworkPolicy>) -> bool {
    matches!(policy, None | Some(NetworkPolicy::Public))
}
