//! A read-only connection to an untrusted database.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, Authorization};
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::helper::Failure;

/// The longest text or blob that a query may create.
const LONGEST_VALUE: i32 = 16 << 20;
/// The number of query steps between two checks of the clock.
const STEPS: i32 = 10_000;
/// Pragmas that only return information about tables.
const ABOUT_TABLES: [&str; 7] = [
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "foreign_key_list",
];
/// Pragmas that only return information if they are given no value.
const ABOUT_THE_FILE: [&str; 5] = ["encoding", "page_count", "page_size", "schema_version", "user_version"];

/// A connection, and the first operation that it rejected.
pub(super) struct Database {
    pub(super) connection: Connection,
    refused: Arc<Mutex<Option<String>>>,
    seconds: u64,
}

impl Database {
    /// Opens the database in this file.
    pub(super) fn open(file: &File, seconds: u64) -> Result<Self, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| Failure::Failed(format!("{what}: {error}"));
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|error| failed("cannot find the database", &error))?;
        let uri = uri(&path, is_settled(file, &path));
        let flags =
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(uri, flags)
            .map_err(|error| failed("cannot open the database", &error))?;
        harden(&connection).map_err(|error| failed("cannot read the database", &error))?;
        // SQLite opens files by their names, and the name may lead to another file by now.
        if !holds(file).map_err(|error| failed("cannot check the database", &error))? {
            return Err(Failure::Refused("the file was replaced while it was being opened".to_owned()));
        }
        let refused = Arc::default();
        let mut database = Self { connection, refused, seconds };
        database.guard().map_err(|error| database.explain(&error))?;
        Ok(database)
    }

    fn guard(&mut self) -> rusqlite::Result<()> {
        let refused = Arc::clone(&self.refused);
        self.connection.authorizer(Some(move |context: rusqlite::hooks::AuthContext<'_>| {
            let Some(wish) = forbidden_operation(context.action) else { return Authorization::Allow };
            // A poisoned lock would mean that this hook itself panicked.
            refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(wish);
            Authorization::Deny
        }))?;
        let end = Instant::now().checked_add(Duration::from_secs(self.seconds));
        self.connection.progress_handler(STEPS, Some(move || end.is_some_and(|end| Instant::now() >= end)))
    }

    /// Explains an error of SQLite to the caller.
    pub(super) fn explain(&self, error: &rusqlite::Error) -> Failure {
        let refused = self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(wish) = refused {
            return Failure::Refused(format!(
                "the database can only be read, and the statement would {wish}"
            ));
        }
        match (error, error.sqlite_error_code()) {
            (rusqlite::Error::MultipleStatement, _) => {
                Failure::Refused("only one statement can be run at a time".to_owned())
            }
            (_, Some(ErrorCode::OperationInterrupted)) => {
                Failure::Late(format!("the query took more than {} seconds", self.seconds))
            }
            (_, Some(ErrorCode::ReadOnly)) => Failure::Refused("the database can only be read".to_owned()),
            (_, Some(ErrorCode::OutOfMemory)) => {
                Failure::Refused("the query needs too much memory".to_owned())
            }
            (_, Some(ErrorCode::NotADatabase)) => {
                Failure::Failed("this is not an SQLite database".to_owned())
            }
            _ => Failure::Failed(message(error)),
        }
    }
}

/// SQLite's message, without the statement and codes that the binding adds.
fn message(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } | rusqlite::Error::SqliteFailure(_, Some(msg)) => {
            msg.clone()
        }
        error => error.to_string(),
    }
}

/// Whether the file alone is the whole database, although its mode would make SQLite create files next to it.
fn is_settled(file: &File, path: &Path) -> bool {
    let mut versions = [0; 2];
    let is_logged = file.read_exact_at(&mut versions, 18).is_ok() && versions == [2, 2];
    let log = PathBuf::from(format!("{}-wal", path.display()));
    is_logged && std::fs::symlink_metadata(log).map_or(true, |log| log.len() == 0)
}

fn uri(path: &Path, immutable: bool) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(char::from(*byte))
            }
            byte => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri.push_str(if immutable { "?mode=ro&immutable=1" } else { "?mode=ro" });
    uri
}

fn harden(connection: &Connection) -> rusqlite::Result<()> {
    for (limit, most) in [
        (Limit::SQLITE_LIMIT_LENGTH, LONGEST_VALUE),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 500),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, most)?;
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.execute_batch("PRAGMA query_only = 1; PRAGMA temp_store = memory; PRAGMA cell_size_check = 1;")
}

/// Whether this process has opened the file a second time.
fn holds(file: &File) -> std::io::Result<bool> {
    let wanted = file.metadata()?;
    let ours = file.as_raw_fd().to_string();
    for descriptor in std::fs::read_dir("/proc/self/fd")? {
        let descriptor = descriptor?;
        let name = descriptor.file_name();
        // The standard input is the file as well.
        if name == "0" || name.as_bytes() == ours.as_bytes() {
            continue;
        }
        let is_same = |open: std::fs::Metadata| (open.dev(), open.ino()) == (wanted.dev(), wanted.ino());
        if std::fs::metadata(descriptor.path()).is_ok_and(is_same) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The forbidden operation of a statement, if any.
fn forbidden_operation(action: AuthAction<'_>) -> Option<String> {
    let wish = match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => return None,
        AuthAction::Function { function_name } if !function_name.eq_ignore_ascii_case("load_extension") => {
            return None;
        }
        AuthAction::Pragma { pragma_name, pragma_value } => {
            let is_among = |list: &[&str]| list.iter().any(|name| pragma_name.eq_ignore_ascii_case(name));
            if is_among(&ABOUT_TABLES) || is_among(&ABOUT_THE_FILE) && pragma_value.is_none() {
                return None;
            }
            format!("use the pragma {pragma_name}")
        }
        AuthAction::Function { function_name } => format!("call {function_name}"),
        AuthAction::Insert { table_name } => format!("insert into {table_name}"),
        AuthAction::Update { table_name, .. } => format!("update {table_name}"),
        AuthAction::Delete { table_name } => format!("delete from {table_name}"),
        AuthAction::Attach { .. } => "attach another database".to_owned(),
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => {
            "begin or end a transaction".to_owned()
        }
        _ => "change the database".to_owned(),
    };
    Some(wish)
}
