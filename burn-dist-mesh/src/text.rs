//! The text form `fsdp=2,tp=4`, and the table of groups.

use super::{Axis, AxisIndex, AxisRole, MeshError, MeshShape, Rank, TextError};
use std::fmt::{self, Write};
use std::str::FromStr;

/// Lists longer than this are cut in [`MeshShape::table`]: a table is for reading.
const TABLE_ITEMS_MAX: usize = 64;

impl MeshShape {
    /// Reads a mesh from its text form, `name=size` joined by commas, outermost first. An axis whose role does not
    /// follow from its name is `name:role=size`: `hosts:shard=2`.
    ///
    /// The empty text and `1` are the mesh of one rank. Law: `MeshShape::parse(&mesh.to_string()) == mesh`.
    /// # Errors
    /// [`MeshError::Parse`], and those of [`Axis::new`] and [`MeshShape::with_roles`].
    pub fn parse(text: &str) -> Result<Self, MeshError> {
        let error = |problem: String| MeshError::Parse {
            text: text.to_owned(),
            problem,
        };
        if matches!(text.trim(), "" | "1") {
            return Self::with_roles(Vec::new());
        }
        let mut axes = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            if part.is_empty() {
                return Err(error("there is nothing between two commas".to_owned()));
            }
            let Some((name, size)) = part.split_once('=') else {
                return Err(error(format!("`{part}` has no size")));
            };
            let (name, size) = (name.trim(), size.trim());
            let size = size.parse().map_err(|_| {
                error(format!(
                    "the size `{size}` of axis `{name}` is not a whole number"
                ))
            })?;
            axes.push(match name.split_once(':') {
                Some((name, role)) => {
                    let role = role.trim().parse();
                    let role = role.map_err(|problem: TextError| error(problem.to_string()))?;
                    Axis::with_role(name.trim(), size, role)
                }
                None => Axis::new(name, size)?,
            });
        }
        Self::with_roles(axes)
    }

    /// Draws the mesh: one line of rank groups per axis, then the ranks as a grid over the last axis.
    pub fn table(&self) -> String {
        self.try_table().expect("writing to a string cannot fail")
    }

    fn try_table(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        match self.num_ranks() {
            1 => writeln!(out, "mesh {self}: 1 rank")?,
            n => writeln!(out, "mesh {self}: {n} ranks")?,
        }
        for axis in self.axis_indices() {
            write!(out, "group {}, ranks:", self.name(axis))?;
            let mut left = TABLE_ITEMS_MAX;
            for group in self.groups(&[axis]) {
                if group.len() > left {
                    write!(out, " ...")?;
                    break;
                }
                left -= group.len();
                let ids: Vec<_> = group.iter().map(Rank::to_string).collect();
                write!(out, " [{}]", ids.join(", "))?;
            }
            writeln!(out)?;
        }
        if let Some(last) = self.axis_indices().last() {
            self.write_grid(last, &mut out)?;
        }
        Ok(out)
    }

    fn write_grid(&self, last: AxisIndex, out: &mut String) -> fmt::Result {
        let cols = self.size(last).min(TABLE_ITEMS_MAX);
        let heads: Vec<_> = (0..cols)
            .map(|i| format!("{}={i}", self.name(last)))
            .collect();
        let width = heads.iter().map(String::len).max().unwrap_or(0);
        let width = width.max(self.num_ranks().to_string().len());
        let firsts = self.groups(&[last]);
        let rows: Vec<_> = firsts
            .iter()
            .take(TABLE_ITEMS_MAX)
            .map(|ranks| {
                let outer = self.axis_indices().filter(|&axis| axis != last);
                let label: Vec<_> = outer
                    .map(|axis| format!("{}={}", self.name(axis), self.coord(ranks[0], axis)))
                    .collect();
                (label.join(" "), ranks)
            })
            .collect();
        let label_width = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);

        write!(out, "{:label_width$}", "")?;
        for head in &heads {
            write!(out, "  {head:>width$}")?;
        }
        let cut = if cols < self.size(last) { "  ..." } else { "" };
        writeln!(out, "{cut}")?;
        for (label, ranks) in &rows {
            write!(out, "{label:label_width$}")?;
            for rank in &ranks[..cols] {
                write!(out, "  {:>width$}", rank.0)?;
            }
            writeln!(out, "{cut}")?;
        }
        if rows.len() < firsts.len() {
            writeln!(out, "...")?;
        }
        Ok(())
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if AxisRole::of_name(&self.name) != Some(self.role) {
            write!(f, ":{}", self.role)?;
        }
        write!(f, "={}", self.size)
    }
}

impl fmt::Display for MeshShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.axes().is_empty() {
            return f.write_str("1");
        }
        for (i, axis) in self.axes().iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            f.write_str(comma)?;
            axis.fmt(f)?;
        }
        Ok(())
    }
}

impl FromStr for MeshShape {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    #[test]
    fn text_round_trips() {
        for text in [
            "1",
            "tp=1",
            "fsdp=2,tp=4",
            "pp=2,dp=3,a-b:model=1,_x:shard=2,tp:replicate=2",
        ] {
            assert_eq!(MeshShape::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(MeshShape::parse("").unwrap().num_ranks(), 1);
        assert_eq!(
            " fsdp = 2 , tp=2, x : shard = 2"
                .parse::<MeshShape>()
                .unwrap()
                .to_string(),
            "fsdp=2,tp=2,x:shard=2"
        );
    }

    #[test]
    fn errors_show_the_text_and_what_to_do() {
        let errors: Vec<_> = [
            "tp",
            "tp=2,,dp=2",
            "tp=two",
            "tp=-1",
            "=2",
            "tp=0",
            "tp=2,tp=2",
            "2",
        ]
        .iter()
        .map(|text| MeshShape::parse(text).unwrap_err().to_string())
        .collect();
        assert_snapshot!(errors.join("\n"), @r"
        cannot read the mesh `tp`: `tp` has no size; write axes as name=size, for example `fsdp=2,tp=4`
        cannot read the mesh `tp=2,,dp=2`: there is nothing between two commas; write axes as name=size, for example `fsdp=2,tp=4`
        cannot read the mesh `tp=two`: the size `two` of axis `tp` is not a whole number; write axes as name=size, for example `fsdp=2,tp=4`
        cannot read the mesh `tp=-1`: the size `-1` of axis `tp` is not a whole number; write axes as name=size, for example `fsdp=2,tp=4`
        `` cannot name a mesh axis: start with a letter or `_`, go on with letters, digits, `_` or `-`, for example `tp`
        axis `tp` has size 0: an axis spans at least 1 rank; leave the axis out if it is not used
        axis `tp` appears twice: give every axis its own name
        cannot read the mesh `2`: `2` has no size; write axes as name=size, for example `fsdp=2,tp=4`
        ");
    }

    #[test]
    fn tables() {
        assert_snapshot!(MeshShape::parse("fsdp=2,tp=2").unwrap().table(), @r"
        mesh fsdp=2,tp=2: 4 ranks
        group fsdp, ranks: [0, 2] [1, 3]
        group tp, ranks: [0, 1] [2, 3]
                tp=0  tp=1
        fsdp=0     0     1
        fsdp=1     2     3
        ");
        assert_snapshot!(MeshShape::parse("pp=2,fsdp=2,tp=3").unwrap().table(), @r"
        mesh pp=2,fsdp=2,tp=3: 12 ranks
        group pp, ranks: [0, 6] [1, 7] [2, 8] [3, 9] [4, 10] [5, 11]
        group fsdp, ranks: [0, 3] [1, 4] [2, 5] [6, 9] [7, 10] [8, 11]
        group tp, ranks: [0, 1, 2] [3, 4, 5] [6, 7, 8] [9, 10, 11]
                     tp=0  tp=1  tp=2
        pp=0 fsdp=0     0     1     2
        pp=0 fsdp=1     3     4     5
        pp=1 fsdp=0     6     7     8
        pp=1 fsdp=1     9    10    11
        ");
        assert_snapshot!(MeshShape::parse("tp=3").unwrap().table(), @r"
        mesh tp=3: 3 ranks
        group tp, ranks: [0, 1, 2]
          tp=0  tp=1  tp=2
             0     1     2
        ");
        assert_snapshot!(MeshShape::parse("").unwrap().table(), @r"
        mesh 1: 1 rank
        ");
    }

    #[test]
    fn large_tables_are_cut() {
        let table = MeshShape::parse("fsdp=512,tp=8").unwrap().table();
        assert!(table.lines().count() < 80 && table.contains("..."));
    }
}
