//! The secret that processes of one program share, and proofs of knowing it.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;
use std::path::{Path, PathBuf};

/// The variable that holds the token.
pub const TOKEN: &str = "BURN_DIST_TOKEN";

pub(crate) const NONCE_BYTES: usize = 32;
pub(crate) const PROOF_BYTES: usize = 32;

/// Shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: usize = 1 << 10;

/// The secret that processes of one program share; it shows itself to nobody.
#[derive(Clone)]
pub struct Token(String);

/// Why there is no token.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Too short to be a secret, or no token at all.
    #[error(
        "{source_name} has a token of {len} bytes, where {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} are needed: make one \
         with `openssl rand -hex 32`"
    )]
    Length {
        /// A variable or a file.
        source_name: String,
        /// Its length.
        len: usize,
    },
    /// A file that cannot be read.
    #[error("cannot read the token from {}, or make it: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A place for the token of this user that is somebody else's, or that others can enter.
    #[error(
        "{} is no place for a secret of user {user}: {what}; remove it, or set {TOKEN} to the same in all processes \
         (`openssl rand -hex 32` makes one)", path.display()
    )]
    Foreign {
        /// The folder or the file.
        path: PathBuf,
        /// The user.
        user: u32,
        /// The fault in it.
        what: String,
    },
    /// A file that others can read.
    #[error("{} can be read by others (mode {mode:03o}), so its token is no secret: chmod 600 {}, and make a new one", path.display(), path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

burn_dist_mesh::debug_by_message!(TokenError);

impl Token {
    /// Returns a token of 32 random bytes from the operating system, in hexadecimal digits.
    ///
    /// # Errors
    /// If the system has none.
    pub fn random() -> std::io::Result<Self> {
        let digits = random()?.map(|byte| format!("{byte:02x}"));
        Ok(Self(digits.concat()))
    }

    /// Returns a token as people write it, without the white space around it.
    ///
    /// # Errors
    /// If it is too short to be a secret. `source_name` says where it is from.
    pub fn new(text: &str, source_name: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        match text.len() {
            TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX => Ok(Self(text.to_string())),
            len => Err(TokenError::Length {
                source_name: source_name.to_string(),
                len,
            }),
        }
    }

    /// Returns the token in a file that only its owner can read.
    ///
    /// # Errors
    /// If it cannot be read, others can read it, or it is too short.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::File {
            path: path.to_path_buf(),
            source,
        };
        let file = std::fs::File::open(path).map_err(failed)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                return Err(TokenError::Open {
                    path: path.to_path_buf(),
                    mode,
                });
            }
        }
        let mut text = String::new();
        let mut start = std::io::Read::take(file, TOKEN_BYTES_MAX as u64 + 64);
        std::io::Read::read_to_string(&mut start, &mut text).map_err(failed)?;
        Self::new(&text, &path.display().to_string())
    }

    /// Returns the token of `BURN_DIST_TOKEN`, if it is set.
    ///
    /// # Errors
    /// If it is too short to be a secret.
    pub fn of_process() -> Result<Option<Self>, TokenError> {
        match std::env::var(TOKEN) {
            Ok(text) => Self::new(&text, TOKEN).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Returns the token by which the programs of this user know each other on this machine, and makes it if there is
    /// none: for processes that meet where nobody else gets, but other users of the machine.
    ///
    /// It is in a folder of the system's temporary one that has the user's number in its name, and that only the user
    /// can enter.
    ///
    /// # Errors
    /// If the folder or the file is somebody else's, or open to others, or cannot be made.
    #[cfg(unix)]
    pub(crate) fn of_user() -> Result<Self, TokenError> {
        let user = rustix::process::geteuid().as_raw();
        Self::in_folder(
            &std::env::temp_dir().join(format!("burn-dist-user-{user}")),
            user,
        )
    }

    #[cfg(unix)]
    fn in_folder(folder: &Path, user: u32) -> Result<Self, TokenError> {
        use std::io::ErrorKind;
        use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| TokenError::File { path, source }
        };
        match std::fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(failed(folder)(error));
            }
            _ => {}
        }
        // Of the folder itself, not of what a link leads to. Once it is this user's and closed, nobody else changes
        // what is in it.
        let found = std::fs::symlink_metadata(folder).map_err(failed(folder))?;
        let what = match found.mode() & 0o777 {
            _ if !found.is_dir() => Some("it is no folder".to_string()),
            _ if found.uid() != user => Some(format!("it is user {}'s", found.uid())),
            mode if mode & 0o077 != 0 => Some(format!("others can enter it (mode {mode:03o})")),
            _ => None,
        };
        if let Some(what) = what {
            let path = folder.to_path_buf();
            return Err(TokenError::Foreign { path, user, what });
        }
        let file = folder.join("token");
        if !file.exists() {
            // Written beside it and linked: the file is there in full or not at all, and the first of several
            // processes has made it.
            let token = Self::random().map_err(failed(&file))?;
            let beside = folder.join(format!("token-{}", &token.secret()[..16]));
            let mut options = std::fs::OpenOptions::new();
            let written = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&beside);
            let written = written.and_then(|mut file| {
                std::io::Write::write_all(&mut file, token.secret().as_bytes())
            });
            let linked = written.and_then(|()| std::fs::hard_link(&beside, &file));
            let _ = std::fs::remove_file(&beside);
            match linked {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(failed(&file)(error));
                }
                _ => {}
            }
        }
        Self::from_file(&file)
    }

    /// Returns the token as text, for [`TOKEN`] of a process that is started.
    pub fn secret(&self) -> &str {
        &self.0
    }

    fn mac(&self, side: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::new_from_slice(self.0.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(side.as_bytes());
        for part in parts {
            // The length before each part: no two lists of parts are the same bytes.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// Returns what only someone with the token can make.
    pub(crate) fn prove(&self, side: &str, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.mac(side, parts).finalize().into_bytes().into()
    }

    /// Returns true if someone with the token has made it; in constant time.
    pub(crate) fn verify(&self, side: &str, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(side, parts).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

pub(crate) fn random() -> std::io::Result<[u8; NONCE_BYTES]> {
    let mut bytes = [0; NONCE_BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_of_one_token_and_one_side() {
        let (token, other) = (
            Token::random().expect("random"),
            Token::random().expect("random"),
        );
        let proof = token.prove("client", &[b"ab", b"c"]);
        assert!(token.verify("client", &[b"ab", b"c"], &proof));
        assert!(!token.verify("client", &[b"a", b"bc"], &proof));
        assert!(!token.verify("server", &[b"ab", b"c"], &proof));
        assert!(!other.verify("client", &[b"ab", b"c"], &proof));
        assert!(!token.verify("client", &[b"ab", b"c"], &proof[..31]));
    }

    #[test]
    fn a_token_survives_the_environment() {
        let token = Token::random().expect("random");
        let text = token.secret();
        let there = Token::new(text, TOKEN).expect("long enough");
        assert_eq!(there.secret(), text);
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn tokens_that_are_no_secret_are_refused() {
        let short = Token::new(" 12345 \n", TOKEN)
            .expect_err("short")
            .to_string();
        assert!(
            short.contains("BURN_DIST_TOKEN has a token of 5 bytes"),
            "{short}"
        );
        let folder = std::env::temp_dir().join(format!("burn-dist-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("token");
        let missing = Token::from_file(&file).expect_err("no file").to_string();
        assert!(missing.contains("cannot read the token from"), "{missing}");
        std::fs::write(&file, "0123456789abcdef\n").expect("a file");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |mode| {
                std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("own file")
            };
            mode(0o644);
            let open = Token::from_file(&file).expect_err("open").to_string();
            assert!(open.contains("can be read by others (mode 644)"), "{open}");
            mode(0o600);
        }
        assert_eq!(
            Token::from_file(&file).expect("a token").secret(),
            "0123456789abcdef"
        );
        std::fs::remove_dir_all(&folder).expect("own folder");
    }

    #[cfg(unix)]
    #[test]
    fn a_user_has_one_token_of_which_nobody_else_knows() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let above = std::env::temp_dir().join(format!("burn-dist-user-{}", std::process::id()));
        std::fs::create_dir_all(&above).expect("a folder");
        let folder = above.join("mine");
        let user = std::fs::metadata(&above).expect("own folder").uid();
        // Processes that start at once come to the same.
        let tokens: Vec<String> = std::thread::scope(|scope| {
            let make = || {
                Token::in_folder(&folder, user)
                    .expect("a token")
                    .secret()
                    .to_string()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, String>| thread.join();
            threads
                .into_iter()
                .map(|thread| join(thread).expect("no panic"))
                .collect()
        });
        assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
        assert_eq!(std::fs::read_dir(&folder).expect("own folder").count(), 1);
        let mode = |path: &Path| std::fs::metadata(path).expect("it is there").mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("token"))), (0o700, 0o600));
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("own file");
        };
        let error = || {
            Token::in_folder(&folder, user)
                .expect_err("no secret")
                .to_string()
        };
        // Somebody else has made the folder, or can enter it, or read the file; or has laid a link to another place.
        let theirs = Token::in_folder(&folder, user + 1).expect_err("another user's");
        let expected = format!(
            "is no place for a secret of user {}: it is user {user}'s; remove it",
            user + 1
        );
        assert!(theirs.to_string().contains(&expected), "{theirs}");
        set(&folder, 0o755);
        assert!(
            error().contains("others can enter it (mode 755)"),
            "{}",
            error()
        );
        set(&folder, 0o700);
        set(&folder.join("token"), 0o644);
        assert!(
            error().contains("can be read by others (mode 644)"),
            "{}",
            error()
        );
        let link = above.join("link");
        std::os::unix::fs::symlink(&folder, &link).expect("own folder");
        let error = Token::in_folder(&link, user)
            .expect_err("a link")
            .to_string();
        assert!(error.contains("it is no folder"), "{error}");
        std::fs::remove_dir_all(&above).expect("own folder");
    }
}
