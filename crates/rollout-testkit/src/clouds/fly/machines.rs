//! Creates and follows machines.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use rollout_sandbox::oci::RegistryLogin;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::{
    TOKEN,
    state::{FlyState, Record},
};
use crate::{
    clouds::machine::{CloudMachine, MachineLimits},
    piped::{Piped, exit_code},
};

/// The ports of services. They are below those that the kernel gives to connections.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A refused creation: the status and the error.
pub(super) type Refusal = (u16, String);

/// Creates a machine, which starts in the background. Returns it as the API shows it.
pub(super) fn create(state: &Arc<FlyState>, app: &str, body: &Value) -> Result<Value, Refusal> {
    let config = body["config"].clone();
    let image = config["image"].as_str().unwrap_or_default().to_owned();
    let found = state.registry.resolve(&image, &state.address.to_string());
    let reference =
        found.ok_or_else(|| (400, format!("failed to get manifest {image}: MANIFEST_UNKNOWN")))?;
    let id = state.new_id();
    let name = body["name"].as_str().map_or_else(|| format!("machine-{id}"), str::to_owned);
    let region = body["region"].as_str().unwrap_or("iad").to_owned();
    let shown = {
        let mut apps = state.apps();
        let app = apps.get_mut(app).ok_or_else(|| (404, "app not found".to_owned()))?;
        if let Some((taken, _)) = app.machines.iter().find(|(_, other)| other.is_live() && other.name == name)
        {
            let error = format!(
                "already_exists: unique machine name violation, machine ID {taken} already exists with name {name:?}"
            );
            return Err((409, error));
        }
        let record = Record::new(name, region, config.clone(), free_port());
        let shown = record.json(&id);
        app.machines.insert(id.clone(), record);
        shown
    };
    let state = Arc::clone(state);
    tokio::spawn(async move {
        if let Err(error) = run(&state, &id, &reference, &config).await {
            // Fly destroys it as if its process had ended.
            eprintln!("the machine {id} does not start: {error}");
            state.exited(&id, 1, false);
        }
    });
    Ok(shown)
}

/// A port that is free now, and not given to another machine of this process.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let width = PORTS.end - PORTS.start;
    // Tests run in many processes at once, which start at different places.
    let start = u16::try_from(std::process::id() * 37 % u32::from(width)).unwrap_or_default();
    let mut ports = std::iter::repeat_with(|| {
        PORTS.start + (start + NEXT.fetch_add(1, Ordering::Relaxed) % width) % width
    });
    ports.find(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok()).unwrap_or(PORTS.start)
}

/// Runs a machine to its end.
async fn run(state: &FlyState, id: &str, reference: &str, config: &Value) -> Result<(), String> {
    let login = RegistryLogin::Password { user: "x".to_owned(), password: TOKEN.to_owned() };
    let logins = HashMap::from([(state.address.to_string(), login)]);
    let pulled = state.images.pull(reference, &logins, &|_| ()).await;
    let image = pulled.map_err(|error| format!("cannot pull {reference}: {error}"))?;
    let guest = &config["guest"];
    let limits = MachineLimits {
        cpus_millis: guest["cpus"].as_u64().map(|cpus| cpus * 1000),
        memory_bytes: guest["memory_mb"].as_u64().map(|memory| memory << 20),
        no_network: false,
    };
    let machine = state.host.boot(id, image, limits).await?;
    let mut piped = start(state, id, &machine, config).await?;
    tokio::spawn(drain(piped.stdout));
    tokio::spawn(drain(piped.stderr));
    if !state.started(id, machine.clone()) {
        machine.kill().await;
        return Ok(());
    }
    let (code, was_oom) = match piped.process.wait().await {
        Ok(exit) => (exit_code(exit.status), exit.oom_killed),
        // Killed with its sandbox.
        Err(_) => (137, false),
    };
    if let Some(machine) = state.exited(id, code, code == 137 && was_oom) {
        machine.kill().await;
    }
    Ok(())
}

async fn start(state: &FlyState, id: &str, machine: &CloudMachine, config: &Value) -> Result<Piped, String> {
    let port = state.change(id, |record| record.port).unwrap_or_default().to_string();
    let internal = config["services"][0]["internal_port"].to_string();
    let argv = config["init"]["exec"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let argv = argv.map(|word| if word == internal { port.clone() } else { word.to_owned() }).collect();
    let no_variables = json!({});
    let variables = config.get("env").unwrap_or(&no_variables).as_object().into_iter().flatten();
    let variables: Vec<(String, String)> = variables
        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect();
    machine.exec(argv, &variables, None, Some("0"), false).await.map_err(|(_, message)| message)
}

/// Reads the log of a machine, which is not kept.
async fn drain(mut output: tokio::net::unix::pipe::Receiver) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(1..) = output.read(&mut buffer).await {}
}
