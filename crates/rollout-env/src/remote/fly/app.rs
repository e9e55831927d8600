//! The app of the machines: found, or created with an address.

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{api::Api, settings::is_app_name};
use crate::remote::{backend::CloudError, random_hex};

/// The start of the names of apps that Rollout creates.
const PREFIX: &str = "rollout-";

#[derive(Debug, Deserialize)]
struct AppList {
    #[serde(default)]
    apps: Vec<App>,
}

#[derive(Debug, Deserialize)]
struct App {
    name: String,
}

#[derive(Debug, Deserialize)]
struct IpList {
    #[serde(default)]
    ips: Vec<Ip>,
}

#[derive(Debug, Deserialize)]
struct Ip {
    ip: String,
    #[serde(default)]
    egress: bool,
}

impl Ip {
    /// Whether clients on the internet reach the app by it.
    fn is_public(&self) -> bool {
        !self.egress && !self.ip.starts_with("fdaa:")
    }
}

/// Finds the app by its name, or without one by the names that Rollout gives.
pub(super) async fn find(api: &Api, name: Option<&str>, org: &str) -> Result<Option<String>, CloudError> {
    if let Some(name) = name {
        let found: Result<Value, _> = api.call(Method::GET, &format!("/apps/{name}"), &[], None).await;
        return match found {
            Ok(_) => Ok(Some(name.to_owned())),
            Err(CloudError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        };
    }
    let list: AppList = api.call(Method::GET, "/apps", &[("org_slug", org)], None).await?;
    let names = list.apps.into_iter().map(|app| app.name);
    Ok(names.filter(|name| name.starts_with(PREFIX) && is_app_name(name)).min())
}

/// Finds the app, or creates it, and makes sure that it has an address.
pub(super) async fn ensure(api: &Api, name: Option<&str>, org: &str) -> Result<String, CloudError> {
    let app = match find(api, name, org).await? {
        Some(app) => app,
        None => create(api, name, org).await?,
    };
    give_address(api, &app).await.map_err(|error| match error {
        CloudError::Missing(text) | CloudError::Refused(text) => CloudError::Refused(format!(
            "cannot give the app {app} an address: {text}; run `fly ips allocate-v4 --shared --app {app}`"
        )),
        error => error,
    })?;
    Ok(app)
}

async fn create(api: &Api, name: Option<&str>, org: &str) -> Result<String, CloudError> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => {
            let random = random_hex().map_err(|error| CloudError::Refused(error.to_string()))?;
            format!("{PREFIX}{}", &random[..12])
        }
    };
    // The documentation names the app by `app_name`, newer clients by `name`. A private network of its own keeps the
    // machines of trials apart from the other apps of the organization.
    let body = json!({"app_name": name, "name": name, "org_slug": org, "network": name});
    match api.order(Method::POST, "/apps", &[], Some(&body)).await {
        Ok(()) => {
            tracing::info!(app = name, "created an app at Fly");
            Ok(name)
        }
        Err(CloudError::Refused(text)) => Err(CloudError::Refused(format!(
            "cannot create the app {name}: {text}; names of apps are unique among all users of Fly"
        ))),
        Err(error) => Err(error),
    }
}

async fn give_address(api: &Api, app: &str) -> Result<(), CloudError> {
    let path = format!("/apps/{app}/ip_assignments");
    let list: IpList = api.call(Method::GET, &path, &[], None).await?;
    if list.ips.iter().any(Ip::is_public) {
        return Ok(());
    }
    api.order(Method::POST, &path, &[], Some(&json!({"type": "shared_v4"}))).await
}
