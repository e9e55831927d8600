//! Images from registries with unusual answers: redirects, challenges, and documents that other clients accept.

use std::collections::HashMap;

use rollout_sandbox::{
    Image,
    oci::{PullError, RegistryImages, RegistryLogin},
};

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
