//! Images from registries with unusual answers: redirects, challenges, and documents that other clients accept.

use std::collections::HashMap;

use rollout_sandbox::{
    Image,
    oci::{PullError, RegistryImages, RegistryLogin},
};

use serde_json::{Value, json};

use crate::{
    common::Host,
    project::chain,
    registry::{Fault, Login, Registry, images, layer, pull},
};

/// An answer that sends the client to another address.
fn redirect(status: u16, to: &str) -> Fault {
    Fault::Answer(status, format!("Location: {to}\r\n").leak(), "")
}

/// Pulls an image with a login for its registry.
async fn pull_as(
    images: &RegistryImages,
    registry: &Registry,
    name: &str,
    login: RegistryLogin,
) -> Result<Image, PullError> {
    let logins = HashMap::from([(registry.address().to_owned(), login)]);
    images.pull(&format!("{}/{name}", registry.address()), &logins, &|_| ()).await
}

#[tokio::test]
async fn a_layer_may_be_on_another_server_that_gets_no_login() {
    let (host, registry, storage) = (Host::start().await, Registry::start(), Registry::start());
    let bytes = layer(&[("file", "x")]);
    let digest = storage.blob("stored", &bytes)["digest"].as_str().unwrap().to_owned();
    registry.image("image", "1", &[bytes]);
    let address = format!("http://{}/v2/stored/blobs/{digest}", storage.address());
    registry.fail(&digest, redirect(307, &address));
    let login = RegistryLogin::Token("secret".into());
    pull_as(&images(&host, &[&registry]), &registry, "image:1", login).await.unwrap();
    assert_eq!(registry.requests(&digest)[0].authorization.as_deref(), Some("Bearer secret"));
    let stored = storage.requests("");
    assert_eq!((stored.len(), stored[0].authorization.as_deref()), (1, None));
}

#[tokio::test]
async fn a_server_that_is_redirected_to_cannot_ask_for_the_login() {
    let (host, registry, other) = (Host::start().await, Registry::start(), Registry::start());
    registry.image("image", "1", &[layer(&[("file", "x")])]);
    other.require(Login::Token("Basic dXNlcjpwYXNz"));
    registry.fail("/manifests/", redirect(307, &format!("http://{}/v2/", other.address())));
    let login = RegistryLogin::Password { user: "user".into(), password: "pass".into() };
    let error = pull_as(&images(&host, &[&registry]), &registry, "image:1", login).await.unwrap_err();
    assert!(chain(&error).contains("status 401"), "{}", chain(&error));
    assert!(other.requests("/token").is_empty());
}

#[tokio::test]
async fn an_identity_token_is_sent_to_no_server_that_the_token_service_redirects_to() {
    let (host, registry, other) = (Host::start().await, Registry::start(), Registry::start());
    registry.image("image", "1", &[layer(&[("file", "x")])]);
    registry.require(Login::Token("refresh_token=secret"));
    let images = images(&host, &[&registry]);
    for status in [307, 308] {
        registry.fail("POST /token", redirect(status, &format!("http://{}/token", other.address())));
        let login = RegistryLogin::Identity("secret".into());
        let error = pull_as(&images, &registry, "image:1", login).await.unwrap_err();
        assert!(chain(&error).contains(&format!("status {status}")), "{}", chain(&error));
    }
    assert!(other.requests("").is_empty(), "{:#?}", other.requests(""));

    registry.fail("POST /token", redirect(307, "/token/here"));
    pull_as(&images, &registry, "image:1", RegistryLogin::Identity("secret".into())).await.unwrap();
    assert!(registry.requests("POST /token/here")[0].body.contains("refresh_token=secret"));
}

#[tokio::test]
async fn errors_do_not_contain_the_signature_in_the_address_of_a_layer() {
    let (host, registry) = (Host::start().await, Registry::start());
    let bytes = layer(&[("file", "x")]);
    let digest = registry.blob("image", &bytes)["digest"].as_str().unwrap().to_owned();
    registry.image("image", "1", &[bytes]);
    for _ in 0..=10 {
        registry.fail(&digest, redirect(307, &format!("/v2/image/blobs/{digest}?signature=secret")));
    }
    let error = pull(&images(&host, &[&registry]), &registry, "image:1").await.unwrap_err();
    assert!(chain(&error).contains("too many redirects"), "{}", chain(&error));
    assert!(!chain(&error).contains("secret"), "{}", chain(&error));
}

#[tokio::test]
async fn an_image_is_pulled_without_a_login_if_the_registry_offers_passwords_before_tokens() {
    let (host, registry) = (Host::start().await, Registry::start());
    registry.image("image", "1", &[layer(&[("file", "x")])]);
    // The token service accepts everybody.
    registry.require(Login::Token(""));
    let challenges = format!(
        "WWW-Authenticate: Basic realm=\"x\"\r\nWWW-Authenticate: Bearer realm=\"http://{}/token\"\r\n",
        registry.address()
    );
    registry.fail("/manifests/", Fault::Answer(401, challenges.leak(), ""));
    pull(&images(&host, &[&registry]), &registry, "image:1").await.unwrap();
    assert_eq!(registry.requests("/token").len(), 1);
}

#[tokio::test]
async fn an_entry_that_names_this_machine_is_preferred_to_one_without_a_platform() {
    let (host, registry) = (Host::start().await, Registry::start());
    let attached = registry.image("image", "attached", &[layer(&[("file", "a")])]);
    let mut right = registry.image("image", "right", &[layer(&[("file", "r")])]);
    let here = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    right["platform"] = json!({"os": "linux", "architecture": here});
    let images = images(&host, &[&registry]);
    for (tag, entries, expected) in
        [("1", vec![attached.clone(), right], "right"), ("2", vec![attached], "attached")]
    {
        registry.document("image", tag, &json!({"schemaVersion": 2, "manifests": entries}));
        let image = pull(&images, &registry, &format!("image:{tag}")).await.unwrap();
        assert_eq!(image.config().labels["tag"], expected);
    }
}

/// The manifest of an image with one layer.
fn manifest(registry: &Registry) -> Value {
    let config = registry.blob("image", br#"{"config": {"WorkingDir": "/work"}}"#);
    let layer = registry.blob("image", &layer(&[("file", "x")]));
    json!({"schemaVersion": 2, "config": config, "layers": [layer]})
}

#[tokio::test]
async fn annotations_may_be_null_and_the_configuration_has_any_type() {
    let (host, registry) = (Host::start().await, Registry::start());
    let mut document = manifest(&registry);
    document["layers"][0]["annotations"] = Value::Null;
    registry.document("image", "1", &document);
    let image = pull(&images(&host, &[&registry]), &registry, "image:1").await.unwrap();
    assert_eq!(image.config().workdir, "/work");
    let accepted = registry.requests(document["config"]["digest"].as_str().unwrap());
    assert_eq!(accepted[0].accept.as_deref(), Some("*/*"));
    assert!(registry.requests("/manifests/")[0].accept.as_deref().unwrap().contains("manifest.v1+json"));
}

#[tokio::test]
async fn a_hash_other_than_sha_256_is_an_error_before_any_download() {
    let (host, registry) = (Host::start().await, Registry::start());
    let images = images(&host, &[&registry]);
    let hash = format!("sha512:{}", "ab".repeat(64));
    let error = pull(&images, &registry, &format!("image@{hash}")).await.unwrap_err();
    assert!(error.is_permanent());
    assert!(chain(&error).contains(&format!("the hash {hash} is not SHA-256")), "{}", chain(&error));
    assert!(registry.requests("").is_empty());

    for part in ["config", "layers"] {
        let mut document = manifest(&registry);
        let described = if part == "layers" { &mut document[part][0] } else { &mut document[part] };
        described["digest"] = json!(format!("sha256:{}", "AB".repeat(32)));
        registry.document("image", part, &document);
        let error = pull(&images, &registry, &format!("image:{part}")).await.unwrap_err();
        assert!(chain(&error).contains("ABAB is not SHA-256"), "{}", chain(&error));
    }
    assert!(registry.requests("/blobs/").is_empty());
}

#[tokio::test]
async fn a_layer_begins_anew_if_the_registry_refuses_to_continue_it() {
    for status in [400, 416, 501] {
        let (host, registry) = (Host::start().await, Registry::start());
        let bytes = layer(&[("file", &"x".repeat(200_000))]);
        let digest = registry.blob("image", &bytes)["digest"].as_str().unwrap().to_owned();
        registry.image("image", "1", &[bytes]);
        registry.fail(&digest, Fault::Cut);
        registry.fail(&digest, Fault::Answer(status, "", ""));
        pull(&images(&host, &[&registry]), &registry, "image:1").await.unwrap();
        assert_eq!(registry.requests(&digest).len(), 3, "{status}");
    }
}
