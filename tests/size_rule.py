#!/usr/bin/python3
"""Holds the sizes of the sources against the table in size_rule.txt, which may only fall.

  size_rule.py [ROOT]        prints each size above its line of the table; exit status 1 if there is one
  size_rule.py --lower       lowers the table's lines to the sizes of today, and drops those that are met without a line
  size_rule.py --self-test   shows that each kind of size is counted and that growth is found

A size above its line: mend it, or raise the line in the same commit, with the reason behind the number. Sizes that the
table does not list must meet the default below, and those without a default must be listed.
"""
import ast
import math
import pathlib
import re
import sys
import tempfile

CPP = {".h", ".cpp", ".cu", ".cuh"}
PRODUCT = ("kernels", "collectives", "models", "src")
MOST_LINES, MOST_FUNCTION_LINES = 300, 40
# The program's strings are no comments, so // in them must not look like one.
COMMENT = re.compile(r'^(?:[^"/]|"(?:[^"\\]|\\.)*"|/(?!/))*//(.*)')
PRONOUNS = ("its", "one", "those", "of")
# Sizes of a kind that need no line in the table if they are at most this.
DEFAULTS = {"virtuals": 9, "words per heading": 120}
# The table has sizes of these kinds rounded up, so that a mend of some lines does not have to touch it.
STEPS = {"lines": 50, "words per heading": 10, "comments": 0.2}


def room(path):
    """The folder that a file is counted with."""
    depth = 1 if path.parts[0] == "models" else 2
    return "/".join(path.parts[:-1][:depth])


def code_lines(text, comment):
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith(comment))


def cpp_functions(lines):
    """Yields the number of lines of each function; the code is formatted, so indentation shows where it ends."""
    begin = None
    for i, line in enumerate(lines):
        if begin is None and (not line or not re.match(r"[\w~\[:]", line)):
            continue
        if begin is None:
            begin = i
        if not line.endswith(("{", ";", "}", ":", ">", "\\")) and not re.search(r"[;}]\s*//", line):
            continue
        if line.endswith((">", ":")) and i + 1 < len(lines) and not lines[i + 1].endswith("}") and i - begin < 8:
            continue  # template <...>, or a constructor's list
        header, first, begin = " ".join(lines[begin:i + 1]), begin, None
        if not line.endswith("{") or header.startswith("namespace") or header.endswith("= {"):
            continue
        end = next((j for j in range(i + 1, len(lines)) if lines[j].startswith("}") and not lines[j].endswith("{")), i)
        if re.match(r"(template <.*> )?(class|struct|union)\b(?!.*\) )", header):
            yield from cpp_functions([inner[2:] if inner.startswith("  ") else "" for inner in lines[i + 1:end]])
        elif "(" in header:
            yield end - first + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.end_lineno - node.lineno + 1


def bash_functions(text):
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if re.match(r"\w[\w-]*\(\) *\{$", line):
            yield next((j for j in range(i, len(lines)) if lines[j] == "}"), i) - i + 1


def functions(path, text):
    if path.suffix in CPP:
        return cpp_functions(text.splitlines())
    if path.suffix == ".py" or text.startswith(("#!/usr/bin/python3", "#!/usr/bin/env python3")):
        return python_functions(text)
    return bash_functions(text)


def interfaces(text):
    """Yields the name of each class that has virtual functions, and their number."""
    for match in re.finditer(r"^( *)(?:class|struct) (\w+)[^;{]*\{\n(.*?)^\1\};", text, re.MULTILINE | re.DOTALL):
        if count := len(re.findall(r"^ *virtual ", match[3], re.MULTILINE)):
            yield match[2], count


def options(root):
    """The options of `train`: those in src/cli/train*.cpp, and in functions of *_options.cpp that they call."""
    text = "".join(path.read_text() for path in sorted((root / "src/cli").glob("train*.cpp")))
    common = "".join(path.read_text() for path in sorted((root / "src/cli").glob("*_options.cpp")))
    shared = re.split(r"^(?=\S.*\) \{$)", common, flags=re.MULTILINE)
    shared = {name[1]: part for part in shared if (name := re.match(r".*?(\w+)\(", part))}
    while called := [name for name in shared if name + "(" in text]:
        text += "".join(shared.pop(name) for name in called)
    found = set(re.findall(r'\(\s*(?:\*?command, )?"(--[a-z0-9-]+)"', text))
    return len(found - {"--inject"})  # which is for tests


def words_per_heading(text):
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return round(len(text.split()) / max(1, len(re.findall(r"^#+ ", prose, re.MULTILINE))))


def sources(root):
    """Yields the relative path and the text of each file of the product and of the scripts."""
    for folder in (*PRODUCT, "scripts"):
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root)
            code = path.suffix in (CPP | {".py", ".sbatch", ".pbs", ".lsf"} if folder == "scripts" else CPP)
            if path.is_file() and (code or folder == "scripts" and not path.suffix):
                yield relative, path.read_text()


def manual(root):
    """The pages that explain; those of scripts/results/ are tables."""
    pages = [root / "README.md", root / ".github/CONTRIBUTING.md", root / "scripts/results/README.md"]
    for folder in (*PRODUCT, "scripts", "tests"):
        pages += [page for page in sorted((root / folder).rglob("*.md")) if "results" not in page.parts]
    return [page for page in pages if page.exists()]


def measure(root):
    """The sizes by name."""
    sizes, comments = {"files over 300 lines": 0, "functions over 40 lines": 0}, []

    def add(name, number):
        sizes[name] = sizes.get(name, 0) + number

    for path, text in sources(root):
        own = path.suffix in CPP
        code = code_lines(text, "//" if own else "#")
        add(f"lines {room(path)}", code)
        add("lines scripts, all" if path.parts[0] == "scripts" else "lines product, all", code)
        add("files over 300 lines", text.count("\n") > MOST_LINES)
        add("functions over 40 lines", sum(lines > MOST_FUNCTION_LINES for lines in functions(path, text)))
        if path.parts[0] in PRODUCT:
            comments += [match[1].lower() for line in text.splitlines() if (match := COMMENT.match(line))]
            sizes |= {f"virtuals {name}": count for name, count in interfaces(text)}
    words = re.findall(r"[a-z]+", " ".join(comments))
    for word in PRONOUNS:
        sizes[f"comments '{word}' per 1,000 words"] = round(1000 * words.count(word) / max(1, len(words)), 1)
    sizes["options of train"] = options(root)
    sizes |= {f"words per heading {path.relative_to(root)}": words_per_heading(path.read_text()) for path in manual(root)}
    return sizes


def read_table(root):
    """The limits by name, the reasons by name."""
    limits, reasons = {}, {}
    for line in (root / "tests/size_rule.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            number, rest = line.split(maxsplit=1)
            name, _, reason = rest.partition("  # ")
            limits[name.strip()], reasons[name.strip()] = float(number), reason
    return limits, reasons


def default(name):
    return next((number for kind, number in DEFAULTS.items() if name.startswith(kind)), None)


def rounded_up(name, number):
    step = next((step for kind, step in STEPS.items() if name.startswith(kind)), 1)
    return math.ceil(number / step) * step


def check(sizes, limits):
    """What is too large, and what can be lowered."""
    complaints, lower = [], []
    for name, number in sizes.items():
        limit = limits.get(name, default(name))
        if limit is None:
            complaints.append(f"{name}: {number:g}: not in tests/size_rule.txt; add a line")
        elif number > limit:
            complaints.append(f"{name}: {number:g}, at most {limit:g}: mend it, or raise (or add) this line of "
                              "tests/size_rule.txt in the same commit, with the reason behind it")
    for name, limit in limits.items():
        number = sizes.get(name)
        if number is None or number <= (default(name) or 0) or rounded_up(name, number) < limit:
            lower.append(f"{name}: {limit:g}, and {'no longer there' if number is None else f'{number:g} today'}")
    return complaints, lower


def lowered(text, sizes):
    """The table with lines lowered to the sizes of today."""
    lines = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            limit, rest = line.split(maxsplit=1)
            name = rest.partition("  # ")[0].strip()
            if name not in sizes or sizes[name] <= (default(name) or -1):
                continue
            line = f"{min(float(limit), rounded_up(name, sizes[name])):>6g}  {rest}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def self_test():
    long = "int f(\n    int a) {\n" + "  a += 1;\n" * 40 + "  return a;\n}\n"
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for file, text in {
                "src/io/a.cpp": '// Its size, one of those.\nnamespace annulus {\nconst char* url = "http://x";\n' + long + "}  // n\n",
                "src/io/b.h": "class A {\n public:\n  virtual ~A() = default;\n  virtual void f() = 0;\n"
                              "  int g() {\n" + "    h();\n" * 39 + "    return 1;\n  }\n};\n",
                "models/resnet/c.cpp": "int x;\n" * 301, "scripts/d": "#!/usr/bin/python3\ndef f():\n" + "    g()\n" * 40,
                "src/cli/train.cpp": 'add("--lr", x);\nadd_shared(*command);\n',
                "src/cli/common_options.cpp": 'void add_shared(A& command) {\n  command\n      .add_option(\n"--wd", x);\n}\n'
                                              'void add_other(A& command) {\n  command.add_flag("--no", x);\n}\n',
                "README.md": "# A\nb c\n```\n# d\n```\n"}.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        sizes = measure(root)
    wanted = {"lines src/io": 47 + 47, "lines models": 301, "lines product, all": 47 + 47 + 301 + 2 + 8,
              "lines scripts": 41, "files over 300 lines": 1, "functions over 40 lines": 3, "virtuals A": 2,
              "options of train": 2, "words per heading README.md": 8, "comments 'its' per 1,000 words": 166.7}
    if wrong := {name: sizes.get(name) for name, number in wanted.items() if sizes.get(name) != number}:
        sys.exit(f"self-test: {wrong}, wanted {wanted}")
    if check(sizes, sizes)[0] or len(check(sizes, {**sizes, "lines models": 300})[0]) != 1:
        sys.exit("self-test: growth is not found")
    if len(check({"lines new": 1, "virtuals B": 10, "virtuals C": 9}, {})[0]) != 2:
        sys.exit("self-test: a size without a line is not found")
    if lowered("# a\n   500  lines models  # why\n     3  virtuals A\n", sizes) != "# a\n   350  lines models  # why\n":
        sys.exit("self-test: the table is not lowered")
    print(f"self-test: {len(wanted)} sizes counted, growth found, a table lowered")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    lower = arguments == ["--lower"]
    root = pathlib.Path(arguments[0]) if arguments and not lower else pathlib.Path(__file__).resolve().parents[1]
    sizes = measure(root)
    if lower:
        table = root / "tests/size_rule.txt"
        return table.write_text(lowered(table.read_text(), sizes))
    complaints, falls = check(sizes, read_table(root)[0])
    print(*complaints, sep="\n", end="\n" if complaints else "")
    if falls and not complaints:
        print("can be lowered with tests/size_rule.py --lower:", *falls, sep="\n  ")
    return sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
