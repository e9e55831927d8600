//! Images from registries: what is chosen, how they are unpacked, and what happens when a registry or a network fails.

use std::{collections::HashMap, path::Path, sync::Mutex, time::Duration};

use rollout_sandbox::{
    FileLookup,
    oci::{PullProgress, RegistryImages, RegistryLogin, RegistryOptions},
};
use serde_json::json;

use crate::{
    common::Host,
    project::chain,
    registry::{Fault, Login, Registry, file, header, images, impatient, layer, pull, sandbox},
};

const RATE_LIMIT: Fault = Fault::Answer(
    429,
    "Retry-After: 1\r\n",
    r#"{"errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your rate limit."}]}"#,
);

/// A layer with one file of this size, whose content does not repeat.
fn large_layer(path: &str, size: u64) -> Vec<u8> {
    let mut number = size;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (number >> 33) as u8
    })
    .take(usize::try_from(size).unwrap())
    .collect();
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = header();
    header.set_mode(0o644);
    header.set_size(size);
    archive.append_data(&mut header, path, &*bytes).unwrap();
    archive.into_inner().unwrap()
}

#[tokio::test]
async fn the_image_of_this_machine_is_chosen_from_an_index() {
    let (host, registry) = (Host::start().await, Registry::start());
    let here = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let mut manifests = Vec::new();
    for (os, architecture) in [("unknown", "unknown"), ("linux", "s390x"), ("windows", here), ("linux", here)]
    {
        let name = format!("{os}-{architecture}");
        let mut described = registry.image("many", &name, &[layer(&[("platform", &name)])]);
        described["platform"] = json!({"os": os, "architecture": architecture});
        manifests.push(described);
    }
    registry.document("many", "1", &json!({"schemaVersion": 2, "manifests": manifests}));
    let images = images(&host, &[&registry]);
    let image = pull(&images, &registry, "many:1").await.unwrap();
    assert_eq!(image.config().labels["tag"], format!("linux-{here}"));
    let inside = sandbox(&host, image).await;
    assert_eq!(file(&inside, "/platform").await, Some(format!("linux-{here}")));
    inside.destroy().await.unwrap();

    registry.document("many", "2", &json!({"schemaVersion": 2, "manifests": manifests[..3]}));
    let error = pull(&images, &registry, "many:2").await.unwrap_err();
    assert!(chain(&error).contains(&format!("no image for linux/{here}")), "{}", chain(&error));
    assert!(error.is_permanent());
}

#[tokio::test]
async fn layers_may_be_plain_or_compressed_with_gzip_or_zstd() {
    use std::io::Write as _;
    let (host, registry) = (Host::start().await, Registry::start());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&layer(&[("gzip", "g")])).unwrap();
    let zstd = zstd::encode_all(&*layer(&[("zstd", "z")]), 3).unwrap();
    registry.image("forms", "1", &[layer(&[("plain", "p")]), gzip.finish().unwrap(), zstd]);
    let image = pull(&images(&host, &[&registry]), &registry, "forms:1").await.unwrap();
    let inside = sandbox(&host, image).await;
    for (name, text) in [("plain", "p"), ("gzip", "g"), ("zstd", "z")] {
        assert_eq!(file(&inside, &format!("/{name}")).await.as_deref(), Some(text));
    }
    inside.destroy().await.unwrap();
}

#[tokio::test]
async fn whiteouts_and_opaque_directories_hide_what_lower_layers_have() {
    let (host, registry) = (Host::start().await, Registry::start());
    let lower = layer(&[
        ("a/", ""),
        ("a/gone", "1"),
        ("a/kept", "2"),
        ("b/", ""),
        ("b/old", "3"),
        ("c/d/", ""),
        ("e/old", "5"),
    ]);
    let hidden = [("a/.wh.gone", ""), ("b/", ""), ("b/.wh..wh..opq", ""), ("b/new", "4"), (".wh.c", "")];
    let replaced = [(".wh.e", ""), ("e/", ""), ("e/new", "6")];
    let upper = layer(&[hidden.as_slice(), &replaced].concat());
    registry.image("hidden", "1", &[lower, upper]);
    let image = pull(&images(&host, &[&registry]), &registry, "hidden:1").await.unwrap();
    let inside = sandbox(&host, image).await;
    for (path, expected) in [
        ("/a/gone", None),
        ("/a/kept", Some("2")),
        ("/b/old", None),
        ("/b/new", Some("4")),
        ("/c/d/x", None),
        ("/e/old", None),
        ("/e/new", Some("6")),
    ] {
        assert_eq!(file(&inside, path).await.as_deref(), expected, "{path}");
    }
    inside.destroy().await.unwrap();
}

#[tokio::test]
async fn every_answer_of_a_registry_may_fail_for_a_while() {
    let host = Host::start().await;
    let small = Fault::Answer(429, "", "");
    let busy = Fault::Answer(503, "", "<html>try later</html>");
    let kinds = [RATE_LIMIT, small, busy, Fault::Cut, Fault::Corrupt, Fault::Stalled];
    for (number, fault) in kinds.into_iter().enumerate() {
        let registry = Registry::start();
        registry.require(Login::Token("Basic dXNlcjpwYXNz"));
        let mut manifest = registry.image("faulty", "image", &[layer(&[("file", &format!("{number}"))])]);
        manifest["platform"] = json!({"os": "linux", "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }});
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        registry.document("faulty", "1", &index);
        // A changed index has no hash that it could be compared with, and a changed token is rejected.
        let is_content = matches!(fault, Fault::Corrupt);
        for request in ["/manifests/1", "/token", "/manifests/sha256", "/blobs/"] {
            if !is_content || request.contains("sha256") || request.contains("blobs") {
                registry.fail(request, fault.clone());
            }
        }
        // Two blobs: the configuration and the layer.
        registry.fail("/blobs/", fault.clone());
        let login = RegistryLogin::Password { user: "user".into(), password: "pass".into() };
        let logins = HashMap::from([(registry.address().to_owned(), login)]);
        let images = impatient(&host, &registry);
        let pulled = images.pull(&format!("{}/faulty:1", registry.address()), &logins, &|_| ()).await;
        // The configuration is corrupt twice, which is an error.
        if is_content {
            assert!(chain(&pulled.unwrap_err()).contains("does not have that hash"));
            continue;
        }
        let image = pulled.unwrap_or_else(|error| panic!("{fault:?}: {}", chain(&error)));
        assert_eq!(registry.faults_left(), 0, "{fault:?}");
        assert_eq!(image.config().workdir, "/work");
    }
}

#[tokio::test]
async fn a_rate_limit_that_stays_is_temporary_and_a_long_one_is_not_awaited() {
    let (host, registry) = (Host::start().await, Registry::start());
    registry.image("limited", "1", &[layer(&[("file", "")])]);
    let hour = r#"{"errors": [{"code": "TOOMANYREQUESTS", "message": "come back later"}]}"#;
    for (status, headers) in [(429, "Retry-After: 3600\r\n"), (403, "Retry-After: 3600\r\n")] {
        registry.fail("/manifests/", Fault::Answer(status, headers, hour));
        let error = pull(&images(&host, &[&registry]), &registry, "limited:1").await.unwrap_err();
        assert!(!error.is_permanent() && chain(&error).contains("come back later"), "{}", chain(&error));
    }
    assert_eq!(registry.requests("/manifests/").len(), 2, "one request for each pull");
    registry
        .fail("/manifests/", Fault::Answer(403, "", r#"{"errors": [{"code": "DENIED", "message": "no"}]}"#));
    let error = pull(&images(&host, &[&registry]), &registry, "limited:1").await.unwrap_err();
    assert!(error.is_permanent() && chain(&error).contains("DENIED no"), "{}", chain(&error));
    let error = pull(&images(&host, &[&registry]), &registry, "missing:1").await.unwrap_err();
    assert!(error.is_permanent() && chain(&error).contains("MANIFEST_UNKNOWN"), "{}", chain(&error));
}

#[tokio::test]
async fn a_token_service_that_is_busy_is_asked_again_and_one_that_rejects_is_not() {
    let (host, registry) = (Host::start().await, Registry::start());
    registry.require(Login::Token("Basic dXNlcjpwYXNz"));
    registry.image("private", "1", &[layer(&[("file", "")])]);
    let name = format!("{}/private:1", registry.address());
    let logins = |password: &str| {
        let login = RegistryLogin::Password { user: "user".into(), password: password.into() };
        HashMap::from([(registry.address().to_owned(), login)])
    };
    let images = images(&host, &[&registry]);
    let error = images.pull(&name, &logins("wrong"), &|_| ()).await.unwrap_err();
    assert!(error.is_permanent() && chain(&error).contains("who are you?"), "{}", chain(&error));
    assert_eq!(registry.requests("/token").len(), 1);

    registry.fail("/token", RATE_LIMIT);
    registry.fail("/token", Fault::Answer(500, "", ""));
    images.pull(&name, &logins("pass"), &|_| ()).await.unwrap();
    let asked = registry.requests("/token");
    assert_eq!(asked.len(), 4, "{asked:#?}");
    assert!(
        asked[3].line.contains("service=tests") && asked[3].line.contains("scope=repository%3Aa%3Apull%2Cb")
    );
    // Layers need the token too.
    assert!(registry.requests("/blobs/").iter().all(|request| request.authorization.is_some()));
}

#[tokio::test]
async fn an_expired_token_is_replaced() {
    let (host, registry) = (Host::start().await, Registry::start());
    registry.require(Login::Token("Basic dXNlcjpwYXNz"));
    let login = RegistryLogin::Password { user: "user".into(), password: "pass".into() };
    let logins = HashMap::from([(registry.address().to_owned(), login)]);
    let images = images(&host, &[&registry]);
    for tag in ["1", "2"] {
        registry.image("private", tag, &[layer(&[("file", tag)])]);
        images.pull(&format!("{}/private:{tag}", registry.address()), &logins, &|_| ()).await.unwrap();
        registry.expire_tokens();
    }
    assert_eq!(registry.requests("/token").len(), 2);
}

#[tokio::test]
async fn an_identity_token_is_exchanged_for_a_token_of_the_registry() {
    let (host, registry) = (Host::start().await, Registry::start());
    registry.require(Login::Token("refresh_token=the+secret"));
    registry.image("private", "1", &[layer(&[("file", "")])]);
    let logins =
        HashMap::from([(registry.address().to_owned(), RegistryLogin::Identity("the secret".into()))]);
    let name = format!("{}/private:1", registry.address());
    images(&host, &[&registry]).pull(&name, &logins, &|_| ()).await.unwrap();
    let asked = registry.requests("/token");
    assert_eq!((asked.len(), asked[0].line.as_str()), (1, "POST /token"));
    for field in ["grant_type=refresh_token", "service=tests", "scope=repository%3Aa"] {
        assert!(asked[0].body.contains(field), "{}", asked[0].body);
    }
}

#[tokio::test]
async fn a_corrupt_layer_is_downloaded_once_more_and_never_used() {
    let (host, registry) = (Host::start().await, Registry::start());
    let bytes = large_layer("file", 300_000);
    let digest = registry.blob("corrupt", &bytes)["digest"].as_str().unwrap().to_owned();
    registry.image("corrupt", "1", &[bytes]);
    for _ in 0..2 {
        registry.fail(&digest, Fault::Corrupt);
    }
    let images = images(&host, &[&registry]);
    let error = pull(&images, &registry, "corrupt:1").await.unwrap_err();
    assert!(error.is_permanent() && chain(&error).contains("does not have that hash"), "{}", chain(&error));
    assert_eq!(registry.requests(&digest).len(), 2);
    registry.fail(&digest, Fault::Corrupt);
    pull(&images, &registry, "corrupt:1").await.unwrap();
    assert_eq!(registry.requests(&digest).len(), 4);
}

#[tokio::test]
async fn an_interrupted_layer_goes_on_where_it_ended() {
    let (host, registry) = (Host::start().await, Registry::start());
    let bytes = large_layer("file", 4 << 20);
    let (size, digest) = (bytes.len() as u64, registry.blob("cut", &bytes)["digest"].clone());
    registry.image("cut", "1", &[bytes]);
    // More often than a request is repeated without progress.
    for fault in [Fault::Cut, Fault::Stalled, Fault::Cut, Fault::Trickle, Fault::Cut, Fault::Cut] {
        registry.fail(digest.as_str().unwrap(), fault);
    }
    let seen = Mutex::new(Vec::<PullProgress>::new());
    let name = format!("{}/cut:1", registry.address());
    let report = |progress| seen.lock().unwrap().push(progress);
    impatient(&host, &registry).pull(&name, &HashMap::new(), &report).await.unwrap();
    assert_eq!(registry.faults_left(), 0);
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() > 3 && seen.len() < 30, "{seen:?}");
    assert!(seen.is_sorted_by_key(|progress| (progress.received, progress.layers)), "{seen:?}");
    let last = seen.last().unwrap();
    assert_eq!((last.received, last.bytes, last.layers, last.of), (size, size, 1, 1));
}

#[tokio::test]
async fn a_registry_that_cannot_continue_sends_the_layer_again() {
    let (host, registry) = (Host::start().await, Registry::start());
    let bytes = layer(&[("file", &"x".repeat(200_000))]);
    let whole: &'static str = String::from_utf8(bytes.clone()).unwrap().leak();
    let digest = registry.blob("again", &bytes)["digest"].clone();
    registry.image("again", "1", &[bytes]);
    registry.fail(digest.as_str().unwrap(), Fault::Cut);
    registry.fail(digest.as_str().unwrap(), Fault::Answer(200, "", whole));
    pull(&images(&host, &[&registry]), &registry, "again:1").await.unwrap();
    assert_eq!(registry.faults_left(), 0);
}

#[tokio::test]
async fn pulls_of_different_images_do_not_wait_for_each_other() {
    let (host, registry) = (Host::start().await, Registry::start());
    let shared = layer(&[("shared", "s")]);
    let slow = layer(&[("slow", "s")]);
    let digest = registry.blob("slow", &slow)["digest"].as_str().unwrap().to_owned();
    registry.image("slow", "1", &[shared.clone(), slow]);
    registry.image("fast", "1", &[shared, layer(&[("fast", "f")])]);
    registry.fail(&digest, Fault::Held);
    let images = images(&host, &[&registry]);
    let first = pull(&images, &registry, "slow:1");
    let second = async {
        while registry.requests(&digest).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // It ends while the other one is held.
        pull(&images, &registry, "fast:1").await.unwrap();
        registry.release();
    };
    let (slow, ()) = tokio::join!(first, second);
    slow.unwrap();
    assert_eq!(registry.requests("/blobs/").len(), 5, "the layer that both have was pulled once");
}

#[tokio::test]
async fn a_mirror_is_asked_first_and_the_registry_has_what_it_lacks() {
    let host = Host::start().await;
    let (mirror, registry) = (Registry::start(), Registry::start());
    let [both, only] = ["both", "only"].map(|name| large_layer(name, 100_000));
    registry.image("image", "1", &[both.clone(), only.clone()]);
    mirror.image("cache/image", "1", &[both, only.clone()]);
    let digest = mirror.blob("other", &only)["digest"].as_str().unwrap().to_owned();
    registry.image("rare", "1", &[layer(&[("rare", "r")])]);
    let dead = "127.0.0.1:1".to_owned();
    let options = RegistryOptions {
        insecure: vec![mirror.address().to_owned(), registry.address().to_owned(), dead.clone()],
        mirrors: vec![(registry.address().to_owned(), vec![dead, format!("{}/cache", mirror.address())])],
        ..RegistryOptions::default()
    };
    let images = RegistryImages::new(host.engine.clone(), options);
    let hosts = images.hosts(&format!("{}/image:1", registry.address())).unwrap();
    assert_eq!(hosts, ["127.0.0.1:1", mirror.address(), registry.address()]);

    for _ in 0..2 {
        mirror.fail(&digest, Fault::Answer(500, "", ""));
    }
    // The registry's login is not for its mirror.
    let login = RegistryLogin::Token("secret".into());
    let logins = HashMap::from([(registry.address().to_owned(), login)]);
    images.pull(&format!("{}/image:1", registry.address()), &logins, &|_| ()).await.unwrap();
    assert_eq!(registry.requests("").len(), 1, "one layer: {:#?}", registry.requests(""));
    assert_eq!(registry.requests("")[0].authorization.as_deref(), Some("Bearer secret"));
    assert!(mirror.requests("").iter().all(|request| request.authorization.is_none()));
    pull(&images, &registry, "rare:1").await.unwrap();
    assert_eq!(mirror.requests("/v2/cache/rare/manifests/1").len(), 1);
}

/// The name of the test that is killed, and where it finds its registry and its store.
const KILLED: &str = "pulls::a_pull_that_is_killed_leaves_a_store_that_works";
const REGISTRY: &str = "ROLLOUT_PULL_TEST_REGISTRY";
const STATE: &str = "ROLLOUT_PULL_TEST_STATE";

#[tokio::test]
async fn a_pull_that_is_killed_leaves_a_store_that_works() {
    if let (Ok(address), Ok(state)) = (std::env::var(REGISTRY), std::env::var(STATE)) {
        let engine = crate::common::engine(Path::new(&state)).await;
        let options = RegistryOptions { insecure: vec![address.clone()], ..RegistryOptions::default() };
        let images = RegistryImages::new(engine, options);
        images.pull(&format!("{address}/killed:1"), &HashMap::new(), &|_| ()).await.unwrap();
        return;
    }
    let (host, registry) = (Host::start().await, Registry::start());
    let bytes = large_layer("file", 300_000);
    let digest = registry.blob("killed", &bytes)["digest"].as_str().unwrap().to_owned();
    registry.image("killed", "1", &[layer(&[("small", "")]), bytes]);
    registry.fail(&digest, Fault::Held);
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args([KILLED, "--exact"]).env(REGISTRY, registry.address()).env(STATE, host.state.path());
    let mut killed = program.stdout(std::process::Stdio::null()).spawn().unwrap();
    let layers = host.state.path().join("layers");
    let is_downloading = || {
        let mut found = vec![layers.clone()];
        while let Some(dir) = found.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.file_name() == "blob" && entry.metadata().is_ok_and(|blob| blob.len() > 100_000) {
                    true => return true,
                    false if entry.path().is_dir() => found.push(entry.path()),
                    false => {}
                }
            }
        }
        false
    };
    while !is_downloading() {
        assert!(killed.try_wait().unwrap().is_none(), "it ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(is_downloading());
    let image = pull(&images(&host, &[&registry]), &registry, "killed:1").await.unwrap();
    assert!(!is_downloading(), "what the killed pull left is removed");
    let inside = sandbox(&host, image).await;
    assert!(
        matches!(inside.read_file("/file", 1 << 20).await.unwrap(), FileLookup::File(bytes) if bytes.len() == 300_000)
    );
    inside.destroy().await.unwrap();
}
