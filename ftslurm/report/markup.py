"""HTML elements in which content from files is always text (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftslurm.report.wording import safe

_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/_.~-")


def esc(text: str) -> str:
    """Foreign text as HTML text, also within quotes; control characters become visible."""
    text = safe(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&#39;")


def tag(name: str, inner: str, **attributes: str | int | None) -> str:
    """An element around HTML; attributes are foreign text, ``aria_label`` is ``aria-label``, None is left out."""
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{esc(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{rendered}>{inner}</{name}>"


def link(path: str, text: str, page_directory: str | None) -> str:
    """A link to a file: relative if it is below the page's directory, else absolute; plain text if it is neither."""
    below = f"{page_directory.rstrip('/')}/" if page_directory else None
    if below is not None and path.startswith(below):
        target = "./" + _quoted(path[len(below) :])
    elif path.startswith("/"):
        target = "file://" + _quoted(path)
    else:
        return esc(text)
    return tag("a", esc(text), href=target)


def table(head: Sequence[str], rows: Iterable[str], *, label: str, class_: str | None = None) -> str:
    """A table that scrolls by itself on a narrow screen; ``head`` and ``rows`` are HTML, empty without rows."""
    body = "".join(rows)
    if not body:
        return ""
    cells = "".join(tag("th", name, scope="col") for name in head)
    inner = tag("table", f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody>", class_=class_)
    return tag("div", inner, class_="wide", role="region", tabindex=0, aria_label=label)


def row(*cells: str, id_: str | None = None) -> str:
    """A row whose first cell is its head; cells are HTML."""
    inner = tag("th", cells[0], scope="row") + "".join(f"<td>{cell}</td>" for cell in cells[1:])
    return tag("tr", inner, id_=id_)


def folded(summary: str, inner: str, *, open_: bool = False, class_: str | None = None) -> str:
    """Content that is unfolded on a click; both are HTML."""
    return tag("details", f"<summary>{summary}</summary>{inner}", class_=class_, open=("" if open_ else None))


def _quoted(path: str) -> str:
    try:
        data = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = path.encode("utf-8", "replace")
    return "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in data)
