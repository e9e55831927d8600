//! The programs that an image wants to be started, kept while the guest takes their place.

use std::collections::HashMap;

use bollard::models::HealthConfig;
use rollout_core::text::hex;

use crate::environment::{ImageHealthcheck, ImageStartup};

/// The label with the entrypoint of the image below: hexadecimal JSON, because Podman accepts only plain text.
pub(super) const ENTRYPOINT: &str = "rollout.entrypoint";

/// The label with the command of the image below, in the same form.
pub(super) const COMMAND: &str = "rollout.command";

/// The text of the label.
pub(super) fn label(argv: &[String]) -> String {
    hex(&serde_json::to_vec(argv).unwrap_or_default())
}

/// Reads the startup of an image with a guest.
pub(super) fn of_image(
    healthcheck: Option<HealthConfig>,
    labels: Option<&HashMap<String, String>>,
) -> ImageStartup {
    let words = |key: &str| labels.and_then(|labels| words(labels.get(key)?)).unwrap_or_default();
    let (entrypoint, command) = (words(ENTRYPOINT), words(COMMAND));
    ImageStartup { entrypoint, command, healthcheck: healthcheck.and_then(check) }
}

fn words(label: &str) -> Option<Vec<String>> {
    let digits = label.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    serde_json::from_slice(&bytes?).ok()
}

fn check(config: HealthConfig) -> Option<ImageHealthcheck> {
    let times = [config.interval, config.timeout, config.start_period].map(Option::unwrap_or_default);
    ImageHealthcheck::of_engine(&config.test.unwrap_or_default(), times, config.retries.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entrypoint_is_read_back_from_its_label() {
        let words = ["/entry.sh".to_owned(), "a \"b\"\n".to_owned()];
        let labels = HashMap::from([(ENTRYPOINT.to_owned(), label(&words))]);
        assert_eq!(of_image(None, Some(&labels)).entrypoint, words);
        let odd = HashMap::from([(ENTRYPOINT.to_owned(), "xyz".to_owned())]);
        assert_eq!(of_image(None, Some(&odd)), ImageStartup::default());
    }

    #[test]
    fn a_health_check_is_a_command_or_a_line_for_a_shell() {
        let argv = |test: &[&str]| {
            let test = Some(test.iter().map(|word| (*word).to_owned()).collect());
            check(HealthConfig { test, ..HealthConfig::default() }).map(|check| check.argv.join(" "))
        };
        assert_eq!(argv(&["CMD", "curl", "-f"]).as_deref(), Some("curl -f"));
        assert_eq!(argv(&["CMD-SHELL", "true"]).as_deref(), Some("sh -c true"));
        assert_eq!(argv(&["NONE"]), None);
        assert_eq!(argv(&[]), None);
    }
}
