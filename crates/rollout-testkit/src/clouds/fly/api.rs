//! The API of machines.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper::{Request, body::Incoming};
use serde_json::{Value, json};

use super::{
    TOKEN, description, machines,
    state::{App, FlyState},
};
use crate::{
    clouds::{
        faults::{CloudCall, CloudTrouble},
        server::{Answer, CutHere, json_answer, with_hint, with_trouble},
    },
    kubernetes::query::Query,
};

/// A request to the API.
struct Call {
    method: String,
    /// The parts of the path after `/v1`.
    path: Vec<String>,
    query: Query,
    body: Value,
}

/// The status and the body of an answer.
type Reply = (u16, Value);

/// Answers a request.
pub(super) async fn answer(state: &Arc<FlyState>, request: Request<Incoming>) -> Result<Answer, CutHere> {
    let authorized =
        request.headers().get("authorization").is_some_and(|sent| *sent == format!("Bearer {TOKEN}"));
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| CutHere)?.to_bytes();
    let Some(path) = head.uri.path().strip_prefix("/v1/") else { return Ok(reply(&not_found("page"))) };
    let call = Call {
        method: head.method.as_str().to_owned(),
        path: path.split('/').map(str::to_owned).collect(),
        query: Query::parse(head.uri.query().unwrap_or_default()),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    if !authorized {
        return Ok(reply(&(401, json!({"error": "unauthorized"}))));
    }
    let trouble = call.kind().and_then(|kind| state.faults.meet(kind, state.live().len()));
    with_trouble(trouble, refuse, || reply(&(200, json!({"ok": true}))), async {
        let route = call.route();
        if let Err(error) = description::check_request(&route, &call.body, body.is_empty()) {
            return reply(&(400, json!({"error": format!("invalid_argument: {error}")})));
        }
        let replied = handle(state, &call).await;
        if replied.0 == 200 {
            let checked = description::check_answer(&route, &replied.1);
            assert_eq!(checked, Ok(()), "the answer to {route} does not fit the description");
        }
        reply(&replied)
    })
    .await
}

impl Call {
    /// The method and the path, with the names of its variable parts.
    fn route(&self) -> String {
        let names = ["apps", "{app}", "", "{id}", "", "{key}"];
        let parts = self.path.iter().enumerate().map(|(index, part)| match names.get(index) {
            Some(name) if name.starts_with('{') => name,
            _ => part.as_str(),
        });
        format!("{} /{}", self.method, parts.collect::<Vec<_>>().join("/"))
    }

    /// What a request asks of a cloud. Rollout looks for the app's addresses when it prepares its first image.
    fn kind(&self) -> Option<CloudCall> {
        Some(match self.route().as_str() {
            "GET /apps" | "GET /apps/{app}" | "GET /apps/{app}/machines" => CloudCall::List,
            "GET /apps/{app}/ip_assignments" => CloudCall::Image,
            "POST /apps/{app}/machines" => CloudCall::Create,
            "GET /apps/{app}/machines/{id}" => CloudCall::State,
            "DELETE /apps/{app}/machines/{id}" => CloudCall::Delete,
            _ => return None,
        })
    }

    fn part(&self, index: usize) -> &str {
        self.path.get(index).map(String::as_str).unwrap_or_default()
    }
}

fn reply((status, body): &Reply) -> Answer {
    json_answer(*status, body)
}

fn refuse(trouble: CloudTrouble) -> Answer {
    let (status, error) = match trouble {
        CloudTrouble::Busy(_) => (429, "rate limit exceeded"),
        CloudTrouble::Unauthorized => (401, "unauthorized"),
        CloudTrouble::Refusal => (422, "invalid_argument: the test refuses this"),
        CloudTrouble::Quota => (422, "the organization has reached its maximum number of machines"),
        _ => (503, "unavailable"),
    };
    with_hint(json_answer(status, &json!({"error": error})), trouble)
}

fn not_found(what: &str) -> Reply {
    (404, json!({"error": format!("{what} not found")}))
}

async fn handle(state: &Arc<FlyState>, call: &Call) -> Reply {
    let (app, id) = (call.part(1), call.part(3));
    match call.route().as_str() {
        "GET /apps" => {
            let apps = state.apps();
            let org = call.query.get("org_slug").unwrap_or_default();
            let found: Vec<Value> = apps
                .iter()
                .filter(|(_, app)| app.org == org)
                .map(|(name, app)| app_json(name, app))
                .collect();
            (200, json!({"total_apps": found.len(), "apps": found}))
        }
        "POST /apps" => create_app(state, &call.body),
        "DELETE /apps/{app}/machines/{id}" => delete(state, app, id, call).await,
        "POST /apps/{app}/machines" => match machines::create(state, app, &call.body) {
            Ok(machine) => (200, machine),
            Err((status, error)) => (status, json!({"error": error})),
        },
        route => in_app(state, route, call),
    }
}

/// Requests that concern an existing app.
fn in_app(state: &FlyState, route: &str, call: &Call) -> Reply {
    let (name, id) = (call.part(1), call.part(3));
    let mut apps = state.apps();
    let Some(app) = apps.get_mut(name) else { return not_found("app") };
    match route {
        "GET /apps/{app}" => (200, app_json(name, app)),
        "GET /apps/{app}/ip_assignments" => (200, json!({"ips": app.ips})),
        "POST /apps/{app}/ip_assignments" => {
            let ip = json!({"ip": "66.241.124.1", "region": "global", "shared": true, "egress": false});
            app.ips.push(ip.clone());
            (200, ip)
        }
        "GET /apps/{app}/machines" => {
            let labels: Vec<(&str, &str)> = call.query.starting_with("metadata.").collect();
            let fits =
                |label: &(&str, &str), record: &super::state::Record| record.label(label.0) == Some(label.1);
            let found = app
                .machines
                .iter()
                .filter(|(_, record)| record.is_live() && labels.iter().all(|label| fits(label, record)));
            (200, found.map(|(id, record)| record.json(id)).collect())
        }
        "GET /apps/{app}/machines/{id}" => match app.machines.get(id) {
            Some(record) => (200, record.json(id)),
            None => not_found("machine"),
        },
        "POST /apps/{app}/machines/{id}/metadata/{key}" => match app.machines.get_mut(id) {
            Some(record) => {
                record.config["metadata"][call.part(5)] = call.body["value"].clone();
                (200, json!({"ok": true}))
            }
            None => not_found("machine"),
        },
        _ => not_found("page"),
    }
}

fn create_app(state: &FlyState, body: &Value) -> Reply {
    let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
    let name = text("app_name");
    let mut apps = state.apps();
    if apps.contains_key(&name) {
        return (422, json!({"error": "Name has already been taken", "status": "name_taken"}));
    }
    let app = App { org: text("org_slug"), network: text("network"), ..App::default() };
    let shown = app_json(&name, &app);
    apps.insert(name, app);
    (200, shown)
}

async fn delete(state: &FlyState, app: &str, id: &str, call: &Call) -> Reply {
    let found = state.apps().get(app).and_then(|app| app.machines.get(id)).map(|record| record.state);
    match found {
        None => not_found("machine"),
        Some("started" | "created") if !call.query.flag("force") => {
            (412, json!({"error": "failed_precondition: unable to destroy machine, not currently stopped"}))
        }
        Some(_) => {
            if let Some(machine) = state.destroy(id, "user") {
                machine.kill().await;
            }
            (200, json!({"ok": true}))
        }
    }
}

fn app_json(name: &str, app: &App) -> Value {
    json!({
        "id": name,
        "name": name,
        "status": "deployed",
        "network": app.network,
        "machine_count": app.machines.values().filter(|record| record.is_live()).count(),
        "organization": {"name": app.org, "slug": app.org},
    })
}
