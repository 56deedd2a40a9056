//! Names, damaged files and folders.

use super::*;
use crate::formats::step_of;
