# Reference values of lme4 1.1.31; standard errors of other responses than gaussian are glmmTMB 1.1.5's (lme4's come
# from finite differences). Run: Rscript joint_levels.R FOLDER
suppressMessages(library(lme4))
set.seed(4)
folder <- commandArgs(TRUE)[1]
site <- expand.grid(nurse = 1:5, item = 1:6, site = 1:6)
d <- data.frame(site = paste0("s", site$site), nurse = paste0("n", site$nurse), item = paste0("i", site$item))
d <- d[rep(seq_len(nrow(d)), 2), ]
d <- d[runif(nrow(d)) < 0.8, ]
d$x <- round(rnorm(nrow(d)), 3)
of <- function(f, sd) rnorm(nlevels(f), 0, sd)[f]
eta <- 0.4 + 0.5 * d$x + of(factor(d$site), 0.8) + of(interaction(d$site, d$nurse), 0.6) + of(interaction(d$site, d$item), 0.5) +
  of(interaction(d$site, d$nurse, d$item), 0.4)
d$gaussian <- round(eta + rnorm(nrow(d), 0, 0.8), 4)
d$poisson <- rpois(nrow(d), exp(eta))
d$k <- rbinom(nrow(d), 8, plogis(eta))
d$n <- 8
write.csv(d, file.path(folder, "joint_levels.csv"), row.names = FALSE)
p <- Penicillin
p$site <- c("A", "B", "C")[(as.integer(p$plate) - 1) %/% 8 + 1]
write.csv(p[c("site", "plate", "sample", "diameter")], file.path(folder, "penicillin.csv"), row.names = FALSE)
o <- as.data.frame(nlme::Oxide)
o <- data.frame(source = paste0("s", o$Source), lot = paste0("l", o$Lot), wafer = paste0("w", o$Wafer), thickness = o$Thickness)
write.csv(o, file.path(folder, "oxide.csv"), row.names = FALSE)
v <- subset(lme4::InstEval, as.integer(as.character(dept)) %in% c(15, 5, 10) )
v <- subset(v, as.integer(as.character(d)) %% 3 == 0 & as.integer(as.character(s)) %% 3 == 0)
v <- data.frame(dept = paste0("d", v$dept), student = paste0("s", v$s), lecturer = paste0("l", v$d), service = as.integer(v$service) - 1, y = v$y)
write.csv(v, file.path(folder, "insteval.csv"), row.names = FALSE)
rows <- list()
note <- function(name, m, exact = m) {
  s <- as.data.frame(VarCorr(m)); s <- s[is.na(s$var2), ]
  c1 <- summary(m)$coefficients
  values <- c(setNames(c1[, 1], rownames(c1)), setNames(sqrt(diag(if (identical(exact, m)) as.matrix(vcov(m)) else vcov(exact)$cond)), paste0("se ", rownames(c1))), setNames(s$sdcor, paste0("sd ", s$grp, ifelse(is.na(s$var1) | s$var1 == "(Intercept)", "", paste0(" ", s$var1)))), logLik = as.numeric(logLik(m)))
  rows[[length(rows) + 1]] <<- data.frame(model = name, what = names(values), value = format(values, digits = 12))
}
tight <- glmerControl(optCtrl = list(maxfun = 1e5), tolPwrss = 1e-10)
crossed <- "~ x + (1 | site) + (1 | site:nurse) + (1 | site:item)"
for (reml in c(TRUE, FALSE)) {
  how <- if (reml) "reml" else "ml"
  note(paste("crossed", how), lmer(formula(paste("gaussian", crossed)), d, REML = reml))
  note(paste("slopes", how), lmer(gaussian ~ x + (1 | site) + (1 + x | site:nurse) + (1 | site:item), d, REML = reml))
  note(paste("three", how), lmer(gaussian ~ x + (1 | site) + (1 | site:nurse) + (1 | site:item) + (1 | site:nurse:item), d, REML = reml))
  note(paste("penicillin", how), lmer(diameter ~ 1 + (1 | site) + (1 | site:plate) + (1 | site:sample), p, REML = reml))
  note(paste("oxide", how), lmer(thickness ~ 1 + (1 | source / lot / wafer), o, REML = reml))
  note(paste("insteval", how), lmer(y ~ service + (1 | dept) + (1 | dept:student) + (1 | dept:lecturer), v, REML = reml))
}
nested <- poisson ~ x + (1 | site / nurse / item)
counts <- formula(paste("poisson", crossed))
shares <- formula(paste("cbind(k, n - k)", crossed))
tmb <- function(f, family) glmmTMB::glmmTMB(f, d, family)
note("poisson ml", glmer(counts, d, poisson, control = tight), tmb(counts, poisson))
note("binomial ml", glmer(shares, d, binomial, control = tight), tmb(shares, binomial))
note("nested poisson ml", glmer(nested, d, poisson, control = tight), tmb(nested, poisson))
write.csv(do.call(rbind, rows), file.path(folder, "joint_levels_lme4.csv"), row.names = FALSE)
