// Light or dark: as the system has it, or as the user chose. It runs before the page is drawn.
{
  const KEPT = "outrider.theme", root = document.documentElement, names = ["auto", "light", "dark"];
  const show = (theme) => { root.dataset.theme = theme; };
  show(names.find((name) => name === localStorage.getItem(KEPT)) ?? "auto");
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = root.dataset.theme;
    choice.addEventListener("change", () => {
      localStorage.setItem(KEPT, choice.value);
      show(choice.value);
    });
  });
}
