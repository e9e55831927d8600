//! Downloads the files of `ADD` with a URL.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use reqwest::{Client, Url, header, redirect::Policy};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use super::context::CopyFailure;
use super::transfer::Piece;
use crate::spec::Network;

/// The largest file that is downloaded.
const MAX_SIZE: u64 = 8 << 30;

/// How often a server may send the download elsewhere.
const MAX_REDIRECTS: usize = 10;

/// A server that sends nothing for this long is given up.
const SILENCE: Duration = Duration::from_secs(60);

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Downloads a file to `path`. The request comes from this process, so a build without a network makes none.
pub(crate) async fn download(
    url: &str,
    checksum: Option<&str>,
    network: Network,
    path: &Path,
) -> Result<Piece, CopyFailure> {
    let failed = |source: Cause| CopyFailure::Download { url: url.to_owned(), source };
    if network == Network::None {
        return Err(failed("the build has no network".into()));
    }
    let parsed = Url::parse(url).map_err(|error| failed(error.into()))?;
    let name = parsed.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default().to_owned();
    if name.is_empty() || name == ".." {
        return Err(failed("the address has no file name".into()));
    }
    let (time, hash) = fetch(parsed, path).await.map_err(failed)?;
    if let Some(expected) = checksum
        && expected.strip_prefix("sha256:") != Some(hash.as_str())
    {
        return Err(failed(format!("the file has the hash sha256:{hash}, not {expected}").into()));
    }
    let file = File::open(path).map_err(CopyFailure::io(path))?;
    Ok(Piece::Downloaded { name, file, time })
}

async fn fetch(url: Url, path: &Path) -> Result<(u64, String), Cause> {
    let mut response = client()?.get(url).send().await?.error_for_status()?;
    let time = response.headers().get(header::LAST_MODIFIED);
    let time = time.and_then(|value| http_time(value.to_str().ok()?)).unwrap_or_default();
    let mut file = tokio::fs::File::create(path).await?;
    let (mut hash, mut received) = (Sha256::new(), 0);
    while let Some(bytes) = response.chunk().await? {
        received += bytes.len() as u64;
        if received > MAX_SIZE {
            return Err("the file is larger than 8 GiB".into());
        }
        hash.update(&bytes);
        file.write_all(&bytes).await?;
    }
    file.flush().await?;
    Ok((time, crate::oci::hex(&hash.finalize())))
}

fn client() -> Result<Client, Cause> {
    let builder = Client::builder()
        .redirect(Policy::limited(MAX_REDIRECTS))
        .read_timeout(SILENCE)
        .connect_timeout(SILENCE / 4)
        .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
        // The file is stored as the server has it.
        .no_gzip();
    Ok(builder.build()?)
}

/// The seconds of a time such as `Wed, 21 Oct 2015 07:28:00 GMT`.
fn http_time(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split(' ').skip(1);
    let day: i64 = words.next()?.parse().ok()?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let mut clock = words.next()?.split(':').map(|part| part.parse::<i64>().ok());
    let seconds = clock.next()?? * 3600 + clock.next()?? * 60 + clock.next()??;
    // Days since 1970 of the Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u64::try_from(days * 86_400 + seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_servers_are_read() {
        assert_eq!(http_time("Wed, 21 Oct 2015 07:28:00 GMT"), Some(1_445_412_480));
        assert_eq!(http_time("Thu, 01 Jan 1970 00:00:01 GMT"), Some(1));
        assert_eq!(http_time("Sat, 29 Feb 2020 12:00:00 GMT"), Some(1_582_977_600));
        assert_eq!(http_time("yesterday"), None);
    }

    #[tokio::test]
    async fn a_build_without_a_network_downloads_nothing() {
        let error = download("http://192.0.2.1/file", None, Network::None, Path::new("/nowhere")).await;
        assert!(matches!(error, Err(CopyFailure::Download { .. })));
    }
}
