//! Access control of a service, from the command line.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use rollout_http::{AccessGuard, AccessToken};

use crate::exit::Failure;

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
enum GuardError {
    #[error("other machines can reach {host}; without a token, {danger}")]
    Open { host: IpAddr, danger: &'static str },
    #[error("cannot read the token in {}", path.display())]
    TokenFile { path: PathBuf, source: io::Error },
    #[error("the token in {} is not one line of at least 16 visible ASCII characters", .0.display())]
    Token(PathBuf),
}

/// Returns the access guard of a service. Called first, so that a service never starts without protection by mistake.
pub(super) fn guard(
    host: IpAddr,
    token_file: Option<&Path>,
    danger: &'static str,
) -> Result<AccessGuard, Failure> {
    let Some(path) = token_file else {
        if host.is_loopback() {
            return Ok(AccessGuard::new(host, None));
        }
        let hint = "pass --token-file FILE; clients send the token as `Authorization: Bearer …`";
        return Err(Failure::from(GuardError::Open { host, danger }).hint(Some(hint)));
    };
    let text =
        fs::read_to_string(path).map_err(|source| GuardError::TokenFile { path: path.to_owned(), source })?;
    let token = AccessToken::new(&text).map_err(|_| {
        let hint = "create a token with `openssl rand -hex 32`";
        Failure::from(GuardError::Token(path.to_owned())).hint(Some(hint))
    })?;
    Ok(AccessGuard::new(host, Some(token)))
}
