//! Describes an image while it is built: the variables, the directory and the user that commands would have.
//!
//! Clouds start the guest with variables of their own, as root, in any directory.

use std::{collections::BTreeMap, env, fs, io, path::Path};

/// Variables of the build that are not the image's.
const NOT_THE_IMAGES: [&str; 4] = ["HOME", "HOSTNAME", "PWD", "SHLVL"];

/// Writes the description to a path, as JSON.
pub(crate) fn write(path: &Path) -> io::Result<()> {
    let directory = env::current_dir()?;
    let user = format!("{}:{}", rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    write_of(path, &directory.to_string_lossy(), &user)
}

/// The same with another user than this process has, and another directory unless it is empty.
pub(crate) fn write_of(path: &Path, directory: &str, user: &str) -> io::Result<()> {
    let current = env::current_dir()?;
    let current = current.to_string_lossy();
    let directory = if directory.is_empty() { &current } else { directory };
    let variables: BTreeMap<String, String> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !NOT_THE_IMAGES.contains(&name.as_str()))
        .collect();
    let text = render(&variables, directory, user);
    fs::write(path, text)
}

/// A JSON object. The guest has no serializer, which would be larger than the rest of it.
fn render(variables: &BTreeMap<String, String>, directory: &str, user: &str) -> String {
    let pairs: Vec<String> =
        variables.iter().map(|(name, value)| format!("{}: {}", quoted(name), quoted(value))).collect();
    format!(
        "{{\"env\": {{{}}}, \"workdir\": {}, \"user\": {}}}\n",
        pairs.join(", "),
        quoted(directory),
        quoted(user)
    )
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if u32::from(c) < 0x20 => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_json_whatever_the_variables_hold() {
        let variables =
            [("PATH", "/bin"), ("ODD", "a\"b\\c\nd\u{7f}é")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let text = render(&BTreeMap::from(variables), "/a \"dir\"", "1000:1000");
        assert_eq!(
            text,
            "{\"env\": {\"ODD\": \"a\\\"b\\\\c\\u000ad\u{7f}é\", \"PATH\": \"/bin\"}, \
             \"workdir\": \"/a \\\"dir\\\"\", \"user\": \"1000:1000\"}\n"
        );
    }
}
